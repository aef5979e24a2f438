"""Which files a patch touches, while the model still types it."""

import json
import re

from patchyard.patch import PatchParser

_INPUT = re.compile(r'"input"\s*:\s*"')
_WHOLE = re.compile(r'(?:[^"\\]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*')
_HALF_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
_LONGEST_HEAD = 4096
"""Characters before the value; more of them is no call of ours."""


class PatchTyping:
    """Takes the input of an apply_patch call in pieces, freeform or as JSON arguments. Never raises."""

    def __init__(self, *, json_arguments: bool) -> None:
        self._parser = PatchParser()
        self._value = JsonStringValue() if json_arguments else None
        self._paths: tuple[str, ...] = ()

    def feed(self, delta: str) -> tuple[str, ...] | None:
        """All paths so far when this piece brought a new one, else None."""
        text = delta if self._value is None else self._value.feed(delta)
        if not text or not self._parser.feed(text):
            return None
        names = ((file.path, file.move_to) for file in self._parser.progress)
        paths = tuple(dict.fromkeys(name for pair in names for name in pair if name))
        if paths == self._paths:
            return None
        self._paths = paths
        return paths


class JsonStringValue:
    """The text of the field `input` of a JSON object that arrives in pieces."""

    def __init__(self) -> None:
        self._held = ""
        self._inside = False
        self._over = False

    def feed(self, piece: str) -> str:
        """The next part of the text; empty while none is there, and after its end."""
        if self._over:
            return ""
        self._held += piece
        if not self._inside:
            found = _INPUT.search(self._held)
            if found is None:
                self._over = len(self._held) > _LONGEST_HEAD
                return ""
            self._inside, self._held = True, self._held[found.end() :]
        match = _WHOLE.match(self._held)
        whole = match.group() if match else ""
        rest = self._held[len(whole) :]
        if half := _HALF_PAIR.search(whole):
            whole, rest = whole[: half.start()], whole[half.start() :] + rest
        self._over = rest.startswith('"')
        self._held = rest
        return str(json.loads(f'"{whole}"', strict=False))
