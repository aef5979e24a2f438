"""How many tokens something is, before a provider counted it: bytes / 4, rounded up."""

from collections.abc import Sequence

from patchyard.protocol.model_items import (
    CustomToolCallOutput,
    FunctionCallOutput,
    InputImage,
    InputText,
    Message,
    ModelItem,
    OutputText,
    TokenUsage,
)

BYTES_PER_TOKEN = 4
IMAGE_TOKENS = 1_500
"""Flat estimate: the size of a data URL says nothing about what the model is charged."""


def of_text(text: str) -> int:
    """Estimate for a text."""
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def of_item(item: ModelItem) -> int:
    """Estimate for an item of the model's input."""
    parts = parts_of(item)
    images = sum(isinstance(part, InputImage) for part in parts)
    if images:
        text = sum(of_text(part.text) for part in parts if isinstance(part, InputText | OutputText))
        return images * IMAGE_TOKENS + text
    return -(-len(item.model_dump_json(exclude_none=True).encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def parts_of(item: ModelItem) -> Sequence[object]:
    """Parts of a message or of an output that has some; empty otherwise."""
    match item:
        case Message():
            return item.content
        case FunctionCallOutput() | CustomToolCallOutput() if not isinstance(item.output, str):
            return item.output
        case _:
            return ()


def has_images(item: ModelItem) -> bool:
    """Whether an image is in it."""
    return any(isinstance(part, InputImage) for part in parts_of(item))


def total(usage: TokenUsage) -> int:
    """All tokens of a request, also from providers that do not add up."""
    return usage.total_tokens or usage.input_tokens + usage.output_tokens


def add(a: TokenUsage, b: TokenUsage) -> TokenUsage:
    """The sum of two usages."""
    return TokenUsage(
        input_tokens=a.input_tokens + b.input_tokens,
        cached_input_tokens=a.cached_input_tokens + b.cached_input_tokens,
        cache_write_input_tokens=a.cache_write_input_tokens + b.cache_write_input_tokens,
        output_tokens=a.output_tokens + b.output_tokens,
        reasoning_output_tokens=a.reasoning_output_tokens + b.reasoning_output_tokens,
        total_tokens=total(a) + total(b),
    )


def add_cost(a: float | None, b: float | None) -> float | None:
    """The sum of two costs; None is "not known" and stays None only when both are."""
    return b if a is None else a if b is None else a + b
