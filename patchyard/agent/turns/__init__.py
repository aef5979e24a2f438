"""A turn: its steps, what it spends, and how it ends."""

from .compact_turn import CompactTurn
from .state import StopKind, TurnEnd
from .turn import Recovery, Turn

__all__ = ["CompactTurn", "Recovery", "StopKind", "Turn", "TurnEnd"]
