"""The agent core: a session runs the turns of one thread. Pure asyncio; the outside world is `ports`."""

from .config import Ports, SessionConfig, Settings
from .errors import AgentError, BudgetExceeded, ToolError, TurnError
from .prompts import base_instructions, prompt_version
from .redact import Redactor
from .session import Session, SessionOutcome

__all__ = [
    "AgentError",
    "BudgetExceeded",
    "Ports",
    "Redactor",
    "Session",
    "SessionConfig",
    "SessionOutcome",
    "Settings",
    "ToolError",
    "TurnError",
    "base_instructions",
    "prompt_version",
]
