"""The one place where secrets are taken out of text before it is committed or shown.

Known values are replaced wherever they stand; beyond them, the shapes of common keys are recognised. What a model provider
sends encrypted is left alone: it must go back unchanged.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import BaseModel

REPLACEMENT = "[redacted]"

_MIN_SECRET = 6
"""Shorter known values are not replaced: they would tear ordinary text apart."""
_LONGEST_WORD = 512
"""Characters of an unfinished word that a stream holds back."""

_SHAPES = (
    r"sk-(?:[A-Za-z]+-)?[A-Za-z0-9_-]{20,}",
    r"gh[pousr]_[A-Za-z0-9]{30,}",
    r"github_pat_[A-Za-z0-9_]{40,}",
    r"glpat-[A-Za-z0-9_-]{20,}",
    r"xox[abeoprs]-[A-Za-z0-9-]{10,}",
    r"(?:AKIA|ASIA)[A-Z0-9]{16}",
    r"AIza[A-Za-z0-9_-]{35}",
    r"npm_[A-Za-z0-9]{36}",
    r"pypi-[A-Za-z0-9_-]{40,}",
    r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
)
_SHAPE = re.compile(r"(?<![A-Za-z0-9])(?:" + "|".join(_SHAPES) + r")(?![A-Za-z0-9])")
_URL_PASSWORD = re.compile(r"(?P<head>[a-z][a-z0-9+.-]*://[^\s/:@\"']{0,256}:)(?P<secret>[^\s/@\"']{3,256})(?=@)")
_PRIVATE_KEY = re.compile(
    r"-----BEGIN (?P<kind>[A-Z ]*PRIVATE KEY)-----.*?(?:-----END (?P=kind)-----|\Z)",
    re.DOTALL,
)
_HINT = re.compile(r"sk-|gh[pousr]_|github_pat_|glpat-|xox|A[KS]IA|AIza|npm_|pypi-|eyJ|://|PRIVATE KEY")
"""Cheap test that nearly all text fails."""
_KEPT_FIELDS = frozenset({"encrypted_content", "image_url", "type"})

P = TypeVar("P", bound=BaseModel)


class Redactor:
    """Takes secrets out of text and of whole payloads."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = sorted({s for s in secrets if len(s) >= _MIN_SECRET}, key=len, reverse=True)
        self._known = re.compile("|".join(re.escape(s) for s in known)) if known else None
        self._multi_word = tuple(s for s in known if re.search(r"\s", s))

    def text(self, text: str) -> str:
        """The text without secrets; the same object when there are none."""
        if self._known is not None:
            text = self._known.sub(REPLACEMENT, text)
        if _HINT.search(text) is None:
            return text
        text = _PRIVATE_KEY.sub(REPLACEMENT, text)
        text = _URL_PASSWORD.sub(lambda m: m["head"] + REPLACEMENT, text)
        return _SHAPE.sub(REPLACEMENT, text)

    def payload(self, payload: P) -> P:
        """A payload without secrets in any of its strings; the same object when there are none."""
        cleaned: P = self._walk(payload)
        return cleaned

    def _walk(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, BaseModel):
            changed = {
                name: new
                for name in _string_holders(type(value))
                if (new := self._walk(old := getattr(value, name))) is not old and new != old
            }
            if extra := value.__pydantic_extra__:
                changed |= {n: new for n, old in extra.items() if n not in _KEPT_FIELDS and (new := self._walk(old)) is not old}
            return value.model_copy(update=changed) if changed else value
        if isinstance(value, dict):
            new_dict = {key: self._walk(item) for key, item in value.items()}
            return value if all(new_dict[key] is item for key, item in value.items()) else new_dict
        if isinstance(value, list | tuple):
            items = [self._walk(item) for item in value]
            return value if all(a is b for a, b in zip(items, value, strict=True)) else type(value)(items)
        return value

    def stream(self) -> "StreamRedactor":
        """For text that comes in pieces."""
        return StreamRedactor(self)

    def safe_length(self, text: str) -> int:
        """How much of an unfinished text can't be part of a secret that is still arriving."""
        start = text.rfind("-----BEGIN ")
        if start >= 0 and "-----END " not in text[start:]:
            return start
        cut = max(text.rfind(" "), text.rfind("\n"), text.rfind("\t")) + 1
        for secret in self._multi_word:
            overlap = next((n for n in range(min(len(secret), len(text)), 0, -1) if text.endswith(secret[:n])), 0)
            cut = min(cut, len(text) - overlap)
        return cut


class StreamRedactor:
    """Holds back the unfinished word of a stream, so that a secret cut in two is still seen."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""

    def feed(self, piece: str) -> str:
        """What can be shown now; may be empty."""
        self._held += piece
        cut = self._redactor.safe_length(self._held)
        if len(self._held) - cut > _LONGEST_WORD and "-----BEGIN " not in self._held:
            cut = len(self._held)
        ready, self._held = self._held[:cut], self._held[cut:]
        return self._redactor.text(ready) if ready else ""

    def end(self) -> str:
        """The rest."""
        rest, self._held = self._held, ""
        return self._redactor.text(rest) if rest else ""


@lru_cache(maxsize=256)
def _string_holders(model: type[BaseModel]) -> tuple[str, ...]:
    return tuple(name for name in model.model_fields if name not in _KEPT_FIELDS)
