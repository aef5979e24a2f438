"""Figures that benchmarks report: what was measured, against which goal."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One line of the table. `goal` None: shown only."""

    what: str
    measured: float
    unit: str
    goal: float | None = None
    at_least: bool = False
    """True: the goal is a least value, otherwise a largest."""

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None where there is none."""
        if self.goal is None:
            return None
        return self.measured >= self.goal if self.at_least else self.measured <= self.goal


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values are."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
