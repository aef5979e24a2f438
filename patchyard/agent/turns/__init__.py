"""A turn: its steps, what it spends, and how it begins and ends."""

from .kinds import CompactTurn, ReviewTurn, UserShellTurn
from .opening import Recovery
from .state import StopKind, TurnEnd
from .turn import Turn

__all__ = ["CompactTurn", "Recovery", "ReviewTurn", "StopKind", "Turn", "TurnEnd", "UserShellTurn"]
