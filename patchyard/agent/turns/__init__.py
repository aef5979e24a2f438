"""A turn: its steps, what it spends, and how it ends."""

from .compact_turn import CompactTurn
from .review import ReviewTurn
from .state import StopKind, TurnEnd
from .turn import Recovery, Turn
from .user_shell import UserShellTurn

__all__ = ["CompactTurn", "Recovery", "ReviewTurn", "StopKind", "Turn", "TurnEnd", "UserShellTurn"]
