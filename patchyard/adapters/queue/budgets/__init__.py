"""What may be asked of a model provider: limits that all workers share, and what holds while Redis does not answer."""

from ._local import LocalLimits
from ._shared import ProviderBudgets

__all__ = ["LocalLimits", "ProviderBudgets"]
