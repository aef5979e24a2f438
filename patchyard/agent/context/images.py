"""Images in the input of models that can't read them."""

from collections.abc import Sequence

from patchyard.agent.prompts import window_text
from patchyard.protocol.model_items import (
    ContentPart,
    CustomToolCallOutput,
    FunctionCallOutput,
    InputImage,
    InputText,
    Message,
    ModelItem,
)

from .tokens import has_images


def without_images(item: ModelItem) -> ModelItem:
    """The item with a text in place of each image; the same object when there are none."""
    if not has_images(item):
        return item
    match item:
        case Message():
            return item.model_copy(update={"content": _told(item.content)})
        case FunctionCallOutput() | CustomToolCallOutput() if not isinstance(item.output, str):
            return item.model_copy(update={"output": _told(item.output)})
        case _:
            return item


def _told(parts: Sequence[ContentPart]) -> tuple[ContentPart, ...]:
    text = window_text("images")
    return tuple(InputText(text=text) if isinstance(part, InputImage) else part for part in parts)
