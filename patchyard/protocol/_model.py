"""The one base of all wire shapes."""

from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticSerializationError


class WireModel(BaseModel):
    """A frozen shape that refuses unknown fields: a typo in a client is an error, never a silent default."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class RequestModel(WireModel):
    """Body of a request. JSON can write half of a surrogate pair; nothing behind the API can keep it."""

    @model_validator(mode="after")
    def _is_text(self) -> Self:
        try:
            self.model_dump_json()
        except PydanticSerializationError:
            raise ValueError("a text holds half of a surrogate pair, which is no character. Send whole characters") from None
        return self


class TolerantModel(BaseModel):
    """A frozen shape that another program defines: unknown fields are kept and sent back unchanged."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)
