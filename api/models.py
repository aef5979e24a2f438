"""Whether a model that a caller names is served here: a task for one that is not would only fail later."""

from fastapi.exceptions import RequestValidationError

from patchyard.protocol.model_offers import ModelOffer, find_offer, nearest_models
from patchyard.protocol.ops import Op, ThreadSettings, TurnInput, TurnSettings
from patchyard.settings import Settings

_LISTED = 20


class ModelBook:
    """What the settings offer. Workers have the last word: they are asked whatever passes here."""

    def __init__(self, settings: Settings) -> None:
        self._offers: tuple[ModelOffer, ...] = settings.model_offers()

    def check(self, model: str | None, tenant_id: str, *, field: str = "spec.model") -> None:
        """RequestValidationError for a model that no provider of the tenant serves; it lists the known ones, nearest first."""
        if model is None or find_offer(self._offers, model, tenant_id) is not None:
            return
        known = nearest_models(self._offers, model, tenant_id)
        more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
        there = f"there is {', '.join(known[:_LISTED])}{more}" if known else "this tenant has no provider at all"
        message = f"no provider serves the model {model[:200]!r} here; {there}"
        raise RequestValidationError(
            [{"type": "value_error", "loc": ("body", *field.split(".")), "msg": message, "input": model}]
        )

    def check_op(self, op: Op, tenant_id: str) -> None:
        """The same for what an Op changes."""
        if isinstance(op, TurnInput | ThreadSettings | TurnSettings) and op.overrides is not None:
            self.check(op.overrides.model, tenant_id, field="op.overrides.model")
