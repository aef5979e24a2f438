"""get_context_remaining and new_context_window: offered where windows end without a summary, so that the model can choose when."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from patchyard.agent.errors import ToolError
from patchyard.agent.prompts import tool_description, window_text
from patchyard.agent.thread import Thread
from patchyard.agent.tools.calls import Arguments, Tool, ToolCall, function_spec, parse_arguments

from .meter import window_use
from .window import NEW_WINDOW, before_response, has_answers

Specs = Callable[[], Sequence[Mapping[str, Any]]]
_NOTES = (
    "What you must still know and can't see in the work tree: findings, decisions with their reasons, exact commands, what "
    "failed, the next step. They take the place of earlier notes."
)


class _WindowTool:
    """What both have in common. Nothing is shown of them: the new window has an item of its own."""

    name: str
    kind: Literal["function", "custom"] = "function"
    parallel = True
    properties: Mapping[str, Any] = {}

    def __init__(self, thread: Thread) -> None:
        self._thread = thread

    def spec(self) -> Mapping[str, Any]:
        """See Tool."""
        return function_spec(self.name, tool_description(self.name), self.properties, required=())

    def aborted(self, call: ToolCall, *, seconds: float, why: str) -> str:
        """See Tool."""
        return f"{why} after {seconds:.1f} seconds"


class GetContextRemaining(_WindowTool):
    """See the module."""

    name = "get_context_remaining"

    def __init__(self, thread: Thread, specs: Specs) -> None:
        super().__init__(thread)
        self._specs = specs

    async def run(self, call: ToolCall) -> str:
        """See Tool."""
        use = window_use(self._thread, self._specs())
        return window_text("remaining").format(left=use.left, used=use.used, limit=use.limit)


class _NewWindowArguments(Arguments):
    notes: str | None = None


class NewContextWindow(_WindowTool):
    """Only promises the window: it is opened between two steps, see `turns.windows`. Its record is the call with its output."""

    name = NEW_WINDOW
    properties: Mapping[str, Any] = {"notes": {"type": "string", "description": _NOTES}}

    async def run(self, call: ToolCall) -> str:
        """See Tool."""
        parse_arguments(_NewWindowArguments, call)
        if not has_answers(before_response(self._thread.history.items, call.id)):
            raise ToolError(window_text("too_early"))
        return window_text("asked")


def window_tools(thread: Thread, specs: Specs) -> Sequence[Tool]:
    """Both, or none; `specs` are those of all tools of the thread."""
    if thread.config.compaction != "token_budget":
        return ()
    return GetContextRemaining(thread, specs), NewContextWindow(thread)
