"""What a command wrote, as the model reads it: bounded, decoded, without control sequences, cut in the middle."""

import re
from collections import deque
from dataclasses import dataclass

from patchyard.agent.context.tokens import BYTES_PER_TOKEN

BUFFER_BYTES = 1024 * 1024
"""Most output of a command that is kept, first and last half."""

_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC, DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]"  # other escapes
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"  # the rest but tab, newline, carriage return
)
_BREAKS = re.compile(r"\r+\n|\r")


class OutputBuffer:
    """The first and the last half of a stream of bytes, with the number of all bytes."""

    def __init__(self, limit: int = BUFFER_BYTES) -> None:
        self.total = 0
        self._half = limit // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0

    def add(self, data: bytes) -> None:
        """Take more output."""
        self.total += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail.append(data[-self._half :])
            self._tail_size += len(self._tail[-1])
            while self._tail_size - len(self._tail[0]) >= self._half:
                self._tail_size -= len(self._tail.popleft())

    def take(self) -> "Captured":
        """What came since the last call; the buffer is empty afterwards."""
        tail = b"".join(self._tail)[-self._half :]
        captured = Captured(bytes(self._head), tail, self.total)
        self.__init__(self._half * 2)  # type: ignore[misc]
        return captured


@dataclass(frozen=True)
class Captured:
    """Output of a command."""

    head: bytes
    tail: bytes
    total: int
    """Bytes that came, also those that were not kept."""

    @property
    def lost(self) -> int:
        """Bytes between head and tail that were not kept."""
        return self.total - len(self.head) - len(self.tail)

    @property
    def original_tokens(self) -> int:
        """Estimate for the whole."""
        return -(-self.total // BYTES_PER_TOKEN)

    def shaped(self, budget_tokens: int) -> str:
        """The text for the model, within the budget."""
        if not self.lost:
            return truncate(plain(self.head + self.tail), budget_tokens)
        half = budget_tokens * BYTES_PER_TOKEN // 2
        head, tail = _first(plain(self.head), half), _last(plain(self.tail), half)
        left_out = max(1, (self.total - len(head.encode()) - len(tail.encode())) // BYTES_PER_TOKEN)
        return f"{head}\n[… about {left_out} tokens left out …]\n{tail}"


def plain(data: bytes) -> str:
    """Text without control sequences; bytes that are not UTF-8 become U+FFFD; lone carriage returns end a line."""
    return _BREAKS.sub("\n", _CONTROL.sub("", data.decode("utf-8", "replace")))


def truncate(text: str, budget_tokens: int) -> str:
    """The text, or its beginning and end with a count of what is left out between them."""
    budget = budget_tokens * BYTES_PER_TOKEN
    size = len(text.encode())
    if size <= budget:
        return text
    head, tail = _first(text, budget // 2), _last(text, budget // 2)
    between = text[len(head) : len(text) - len(tail)]
    lines = between.count("\n")
    tokens = -(-len(between.encode()) // BYTES_PER_TOKEN)
    return f"{head}\n[… {tokens} tokens ({lines} lines) left out of {text.count(chr(10)) + 1} lines …]\n{tail}"


def _first(text: str, size: int) -> str:
    cut = text.encode()[:size].decode("utf-8", "ignore")
    if len(cut) == len(text):
        return text
    border = cut.rfind("\n")
    return cut[: border + 1] if border >= len(cut) // 2 else cut


def _last(text: str, size: int) -> str:
    cut = text.encode()[-size:].decode("utf-8", "ignore") if size else ""
    if len(cut) == len(text):
        return text
    border = cut.find("\n")
    return cut[border + 1 :] if 0 <= border <= len(cut) // 2 else cut
