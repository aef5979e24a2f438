"""What is around a patch: pieces of text, carriage returns, blank lines before it, a heredoc's first and last line."""

import re

from .hunks import WHITESPACE

_HEREDOCS = frozenset({"<<EOF", "<<'EOF'", '<<"EOF"'})
_CARRIAGE_RETURNS = re.compile(r"(?<!\r)\r+\n")
"""The look-behind keeps a long run of them linear."""


class Envelope:
    """Turns pieces of text into blocks of complete lines of the patch itself. Every block ends with a line feed."""

    def __init__(self) -> None:
        self.is_heredoc = False
        self._begun = False
        self._partial: list[str] = []
        self._last_line = ""
        """Of a heredoc: the last line with text, and blanks after it; it may be the terminator."""

    def open(self, text: str) -> str:
        """The lines that more text completes; may be empty."""
        if "\n" not in text:
            if text:
                self._partial.append(text)
            return ""
        complete, _, rest = text.rpartition("\n")
        block = "".join([*self._partial, complete, "\n"])
        self._partial = [rest] if rest else []
        block = block.replace("\r\n", "\n")
        if "\r\n" in block:
            block = _CARRIAGE_RETURNS.sub("\n", block)
        if not self._begun:
            block = self._begin(block)
        return self._without_last_line(block) if self.is_heredoc else block

    def close(self) -> str:
        """The last line, when nothing has ended it."""
        return self.open("\n") if self._partial else ""

    def is_closed(self) -> bool:
        """Whether a heredoc has its terminator; any line that ends with it counts."""
        return not self.is_heredoc or self._last_line.rstrip(WHITESPACE).endswith("EOF")

    def _begin(self, block: str) -> str:
        block = block.lstrip(WHITESPACE)
        self._begun = block != ""
        first, _, rest = block.partition("\n")
        if first not in _HEREDOCS:
            return block
        self.is_heredoc = True
        return rest

    def _without_last_line(self, block: str) -> str:
        block = self._last_line + block
        cut = block.rfind("\n", 0, len(block.rstrip(WHITESPACE))) + 1
        self._last_line = block[cut:]
        return block[:cut]
