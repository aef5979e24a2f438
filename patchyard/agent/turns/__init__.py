"""A turn: its steps, what it spends, and how it ends."""

from .state import StopKind, TurnEnd
from .turn import Recovery, Turn

__all__ = ["Recovery", "StopKind", "Turn", "TurnEnd"]
