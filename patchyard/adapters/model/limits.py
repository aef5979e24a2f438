"""How much may be asked of a provider: the gate that requests pass, and what providers say of it in headers."""

import re
from collections.abc import Mapping
from typing import Any, Protocol


class Gate(Protocol):
    """Limits shared by all that use a provider. Implementers: adapters.queue.ProviderBudgets."""

    async def enter(
        self,
        provider: str,
        *,
        tokens: int,
        concurrency: int | None,
        requests_per_minute: int | None,
        tokens_per_minute: int | None,
    ) -> str:
        """Wait for a turn and give a permit. `tokens`: what the request will cost, as well as one can tell. Cancel-safe."""
        ...

    async def leave(self, provider: str, permit: str, *, tokens: int | None) -> None:
        """The request is over; `tokens`: what it did cost, None: as was said. Never raises."""
        ...

    async def pause(self, provider: str, seconds: float) -> None:
        """Nobody enters for so long: the provider said so. Never raises."""
        ...


LONGEST_PAUSE_S = 60.0
"""A provider that asks for more concerns one request: others may be let through by then."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_KINDS = ("requests", "tokens", "input_tokens", "output_tokens")


def exhausted_for(values: Mapping[str, Any]) -> float | None:
    """Seconds until something is left again, from the headers of a response; None when something is left, or it is not said."""
    waits = [
        wait
        for kind in ("", *(f"_{kind}" for kind in _KINDS))
        for remaining in (values.get(f"ratelimit_remaining{kind}"),)
        if remaining in (0, "0")
        for wait in (_seconds(values.get(f"ratelimit_reset{kind}")),)
        if wait is not None
    ]
    return min(max(waits), LONGEST_PAUSE_S) if waits else None


def _seconds(value: Any) -> float | None:
    """`6m0s`, `20ms`, or seconds."""
    text = str(value)
    found = _DURATION.findall(text)
    if found and "".join(number + unit for number, unit in found) == text:
        return sum(float(number) * _UNITS[unit] for number, unit in found)
    try:
        return max(0.0, float(text))
    except ValueError:
        return None
