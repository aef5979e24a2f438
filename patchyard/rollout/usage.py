"""Sums of token usage."""

from patchyard.protocol.model_items import TokenUsage

_FIELDS = tuple(TokenUsage.model_fields)


def add_usage(total: TokenUsage, more: TokenUsage | None) -> TokenUsage:
    """Both together. Fields that only a provider knows are left out: they need not be sums."""
    if more is None:
        return total
    return TokenUsage(**{name: getattr(total, name) + getattr(more, name) for name in _FIELDS})
