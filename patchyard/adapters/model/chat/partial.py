"""A text inside JSON that is still arriving."""

import json
import re

_ESCAPE_END = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?$|\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?$")
"""An escape, or half of a surrogate pair, that the next piece may complete."""


class TextArgument:
    """Gives the text of one member of a JSON object piece by piece; nothing when the JSON has another shape."""

    def __init__(self, name: str) -> None:
        self._start = re.compile(r'\s*\{\s*"' + re.escape(name) + r'"\s*:\s*"')
        self._inside = False
        self._over = False
        self._rest = ""

    def feed(self, piece: str) -> str:
        """The part of the text that this piece completes."""
        if self._over:
            return ""
        self._rest += piece
        if not self._inside:
            found = self._start.match(self._rest)
            if found is None:
                return ""
            self._inside, self._rest = True, self._rest[found.end() :]
        end = _closing_quote(self._rest)
        if end is None:
            held = _ESCAPE_END.search(self._rest) if self._dangling() else None
            cut = held.start() if held is not None else len(self._rest)
        else:
            self._over, cut = True, end
        ready, self._rest = self._rest[:cut], self._rest[cut:]
        try:
            return str(json.loads(f'"{ready}"', strict=False))
        except ValueError:
            self._over = True
            return ""

    def _dangling(self) -> bool:
        """Whether the end may be inside an escape: a backslash that is not itself escaped."""
        found = _ESCAPE_END.search(self._rest)
        if found is None:
            return False
        before = self._rest[: found.start()]
        return (len(before) - len(before.rstrip("\\"))) % 2 == 0


def _closing_quote(text: str) -> int | None:
    start = 0
    while (place := text.find('"', start)) >= 0:
        before = text[:place]
        if (len(before) - len(before.rstrip("\\"))) % 2 == 0:
            return place
        start = place + 1
    return None
