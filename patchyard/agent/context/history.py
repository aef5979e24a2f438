"""The model's input of one context window: append-only, and its normalised copy for the prompt, built incrementally."""

from collections import Counter
from collections.abc import Iterable, Sequence

from patchyard.protocol.model_items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputImage,
    InputText,
    ModelItem,
    TokenUsage,
)

from . import tokens
from .images import without_images

Call = FunctionCall | CustomToolCall
Output = FunctionCallOutput | CustomToolCallOutput

ABORTED = "aborted"
"""What the prompt says for a call that never got an output."""


def output_for(call: Call, output: str | tuple[InputText | InputImage, ...]) -> Output:
    """The output item that belongs to a call."""
    if isinstance(call, FunctionCall):
        return FunctionCallOutput(call_id=call.call_id, output=output)
    return CustomToolCallOutput(call_id=call.call_id, output=output)


class History:
    """What the model has seen and said in this window. Compaction replaces the whole by `restart`."""

    def __init__(self, items: Iterable[ModelItem] = (), *, window_number: int = 0, images: bool = True) -> None:
        self.window_number = window_number
        self.images = images
        """False: the prompt says that there was an image instead of showing it. Stays as it is while a window has images."""
        self.items: list[ModelItem] = list(items)
        self._prompt: list[ModelItem] = []
        self._normalised = 0
        self._calls: Counter[str] = Counter()
        self._known_tokens = 0
        self._estimated = 0
        self._counted: int | None = None
        self._looked_at = 0

    def append(self, item: ModelItem) -> None:
        """Add an item."""
        self.items.append(item)

    def restart(self, items: Iterable[ModelItem], *, window_number: int) -> None:
        """Begin a new window with these items."""
        self.__init__(items, window_number=window_number, images=self.images)  # type: ignore[misc]

    def open_calls(self) -> list[Call]:
        """Calls without an output, in order."""
        outputs = Counter(i.call_id for i in self.items if isinstance(i, Output))
        found: list[Call] = []
        for item in self.items:
            if isinstance(item, Call):
                if outputs[item.call_id]:
                    outputs[item.call_id] -= 1
                else:
                    found.append(item)
        return found

    def prompt(self) -> Sequence[ModelItem]:
        """The input of the next request: every call has its output, no output is without a call.

        Extends what it returned before. Only items that came since are looked at.
        """
        new = self.items[self._normalised :]
        self._normalised = len(self.items)
        outputs = Counter(i.call_id for i in new if isinstance(i, Output))
        for item in new:
            if isinstance(item, Call):
                self._prompt.append(item)
                if outputs[item.call_id]:
                    outputs[item.call_id] -= 1
                    self._calls[item.call_id] += 1
                else:
                    self._prompt.append(output_for(item, ABORTED))
            elif isinstance(item, Output):
                if self._calls[item.call_id]:
                    self._calls[item.call_id] -= 1
                    self._prompt.append(self._shown(item))
            else:
                self._prompt.append(self._shown(item))
        return tuple(self._prompt)

    def response_counted(self, usage: TokenUsage, *, items: int | None = None) -> None:
        """A provider counted so many items, all that there are if not said."""
        self._known_tokens, self._estimated = tokens.total(usage), 0
        self._counted = self._looked_at = len(self.items) if items is None else items

    @property
    def counted(self) -> bool:
        """Whether a response was counted in this window."""
        return self._counted is not None

    def estimated_tokens(self) -> int:
        """Tokens of the window: the provider's last count and an estimate of what came since."""
        new = self.items[self._looked_at :]
        self._looked_at = len(self.items)
        self._estimated += sum(tokens.of_item(item) for item in new)
        return self._known_tokens + self._estimated

    def _shown(self, item: ModelItem) -> ModelItem:
        return item if self.images else without_images(item)
