"""apply_patch: what the model writes as a patch, handed to the thread's PatchWork."""

from collections.abc import Mapping
from typing import Any, Literal

from patchyard.agent.patches import PatchWork, with_hooks
from patchyard.agent.prompts import patch_grammar, tool_description
from patchyard.agent.thread import Thread
from patchyard.protocol.model_items import FunctionCall

from .calls import Arguments, ToolCall, function_spec, parse_arguments


class PatchArguments(Arguments):
    """Arguments of the function form."""

    input: str


class ApplyPatch:
    """See the module. Freeform, or a function with one argument; calls of either form are understood."""

    name = "apply_patch"
    parallel = False

    def __init__(self, thread: Thread) -> None:
        self._thread = thread
        self.work = PatchWork(thread)
        """Also does the patches of the program that commands run."""
        self.kind: Literal["function", "custom"] = "custom" if thread.config.freeform_patch else "function"

    def spec(self) -> Mapping[str, Any]:
        """See Tool."""
        description = tool_description(self.name)
        if self.kind == "function":
            properties = {"input": {"type": "string", "description": "The whole patch."}}
            return function_spec(self.name, f"{description}\n\n{patch_grammar()}", properties, required=("input",))
        grammar = {"type": "grammar", "syntax": "lark", "definition": patch_grammar()}
        return {"type": "custom", "name": self.name, "description": description, "format": grammar}

    def aborted(self, call: ToolCall, *, seconds: float, why: str) -> str:
        """See Tool."""
        return f"{why} after {seconds:.1f} seconds"

    async def run(self, call: ToolCall) -> str:
        """See Tool."""
        text = parse_arguments(PatchArguments, call).input if isinstance(call.item, FunctionCall) else call.item.input
        return await self._apply(call, text, cwd=self._thread.active_settings.cwd)

    async def apply_found(self, call: ToolCall, text: str, *, cwd: str) -> str:
        """Apply a patch that another tool's call holds, with the hooks of this tool. ToolError."""
        return await with_hooks(self._thread, call.id, text, lambda patch: self._apply(call, patch, cwd=cwd))

    async def _apply(self, call: ToolCall, text: str, *, cwd: str) -> str:
        """Apply a patch whose relative paths start at `cwd`. ToolError when it does not fit or may not be written."""
        report = await self.work.apply(call.id, text, cwd=cwd, settings=self._thread.active_settings)
        seconds = self._thread.ports.clock.monotonic() - call.started
        return f"Exit code: 0\nWall time: {seconds:.1f} seconds\nOutput:\n{report}"
