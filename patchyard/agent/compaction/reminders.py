"""Tells a model whose windows end without a summary how full the present one is."""

from collections.abc import Mapping
from typing import Any

from patchyard.agent.context.marks import tagged
from patchyard.agent.prompts import window_text
from patchyard.protocol.model_items import InputText, Message
from patchyard.protocol.rollout_lines import LinePayload, WorldState

SHARES = (75, 50, 25)
"""Percent of the window at which the model is told, highest first."""
_KEY = "window_share_told"


def reminder(used: int, *, window: int, limit: int, world: Mapping[str, Any] | None) -> tuple[LinePayload, ...]:
    """What to record when another share of the window is used; empty otherwise. Tokens; `world` is what was told so far."""
    told = (world or {}).get(_KEY, 0)
    share = next((share for share in SHARES if used * 100 >= share * window), 0)
    if share <= told:
        return ()
    text = window_text("reminder").format(percent=share, used=used, limit=limit)
    message = Message(role="developer", content=(InputText(text=tagged("context_window", text)),))
    return (message, WorldState(full=False, state={_KEY: share}))
