"""How full a thread's context window is."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from patchyard.agent.context import tokens
from patchyard.agent.prompts import base_instructions
from patchyard.agent.thread import Thread


@dataclass(frozen=True)
class WindowUse:
    """Tokens."""

    used: int
    """Of the window, with instructions and tools."""
    limit: int
    """From so many on it is closed."""
    window: int
    """So many does the model take at most."""

    @property
    def left(self) -> int:
        """Until the window is closed."""
        return max(0, self.limit - self.used)


def window_use(thread: Thread, tools: Sequence[Mapping[str, Any]]) -> WindowUse:
    """As the provider counted it last, with an estimate of what came since; before its first count all is an estimate."""
    config, model = thread.config, thread.active_settings.model
    used = thread.history.estimated_tokens()
    if not thread.history.counted:
        used += tokens.of_text(base_instructions(config.family(model))) + tokens.of_text(json.dumps(list(tools)))
    return WindowUse(used, config.context_limit(model), config.profile(model).context_window)
