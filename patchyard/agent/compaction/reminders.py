"""Tells a model whose windows end without a summary how full the present one is."""

from collections.abc import Mapping
from typing import Any

from patchyard.agent.context.marks import tagged
from patchyard.agent.prompts import window_text
from patchyard.protocol.model_items import InputText, Message
from patchyard.protocol.rollout_lines import LinePayload, WorldState

from .meter import WindowUse

SHARES = (75, 50, 25)
"""Percent of the window at which the model is told, highest first."""
LOW_TOKENS = 16_000
"""So few tokens before its end it is told for the last time."""
LOW_PART = 10
"""In a small window: this part of its limit, if that is less."""
_SHARE, _LOW = "window_share_told", "window_low_told"


def reminder(use: WindowUse, *, world: Mapping[str, Any] | None) -> tuple[LinePayload, ...]:
    """What to record when another mark is reached; empty otherwise. `world` is what was told so far.

    Of several marks that one step passes only the most urgent is told.
    """
    world = world or {}
    share = next((share for share in SHARES if use.used * 100 >= share * use.window), 0)
    if world.get(_LOW):
        return ()
    if use.left <= min(LOW_TOKENS, use.limit // LOW_PART):
        return _told(window_text("low").format(left=use.left), {_LOW: True})
    if share <= world.get(_SHARE, 0):
        return ()
    return _told(window_text("reminder").format(percent=share, used=use.used, limit=use.limit), {_SHARE: share})


def _told(text: str, state: dict[str, Any]) -> tuple[LinePayload, ...]:
    message = Message(role="developer", content=(InputText(text=tagged("context_window", text)),))
    return (message, WorldState(full=False, state=state))
