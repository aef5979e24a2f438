"""Turns that are not the regular one: each says only what it does differently."""

from .compact import CompactTurn
from .review import ReviewTurn
from .user_shell import UserShellTurn

__all__ = ["CompactTurn", "ReviewTurn", "UserShellTurn"]
