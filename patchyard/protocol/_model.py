"""The one base of all wire shapes."""

from pydantic import BaseModel, ConfigDict


class WireModel(BaseModel):
    """A frozen shape that refuses unknown fields: a typo in a client is an error, never a silent default."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class TolerantModel(BaseModel):
    """A frozen shape that another program defines: unknown fields are kept and sent back unchanged."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)
