"""Which tools a thread offers."""

from collections.abc import Mapping, Sequence
from typing import Any

from patchyard.agent.agents.tools import agent_tools
from patchyard.agent.compaction.tools import window_tools
from patchyard.agent.thread import Thread

from .apply_patch import ApplyPatch
from .calls import Tool
from .exec_command import ExecCommand
from .request_user_input import RequestUserInputTool
from .update_plan import UpdatePlan
from .view_image import ViewImage
from .write_stdin import WriteStdin


class Registry:
    """Tools by name, in the order in which the model sees them: the order is part of what providers cache."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._specs = tuple(tool.spec() for tool in tools)

    def get(self, name: str) -> Tool | None:
        """The tool, None when it is not offered."""
        return self._tools.get(name)

    def specs(self) -> Sequence[Mapping[str, Any]]:
        """Specifications as the Responses API takes them."""
        return self._specs


def registry_for(thread: Thread) -> Registry:
    """The tools of a thread."""
    patches = ApplyPatch(thread)

    def specs() -> Sequence[Mapping[str, Any]]:
        return registry.specs()

    registry = Registry(
        (
            ExecCommand(thread, patches),
            WriteStdin(thread),
            patches,
            UpdatePlan(thread),
            ViewImage(thread),
            RequestUserInputTool(thread),
            *agent_tools(thread),
            *window_tools(thread, specs),
        )
    )
    return registry
