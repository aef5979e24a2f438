"""What the service has to know about a model that its provider does not say in the API."""

from typing import Literal

from pydantic import Field

from ._model import WireModel

PromptFamily = Literal["default", "open"]
"""Sets of instructions; see `agent/prompts`."""


class ModelProfile(WireModel):
    """Facts about one model."""

    context_window: int = Field(default=272_000, gt=0)
    """Tokens that it can take."""
    images: bool = True
    """False: images in its input are replaced by a text that says so."""
    family: PromptFamily | None = None
    """Instructions that it is given; None: chosen by its name."""


CompactionMethod = Literal["local", "remote", "token_budget"]
"""How a full context window is followed by a new one.

local         the model writes a summary
remote        the provider makes an opaque item out of the history (`compaction_trigger`)
token_budget  nothing is kept but the user's messages and the plan; the model is told in time how full the window is
"""
