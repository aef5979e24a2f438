"""The golden list of differences between the two programs: each with its reason, none without."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from tests.conformance.codex_cli.cases import HERE, Case
from tests.conformance.codex_cli.shape import Observed

FILE = HERE / "differences.yaml"
NOTHING = "nothing"
_HEAD = """\
# Where Patchyard's agent does not do what Codex 0.159.2 does when both play the same script (scripts/*.yaml).
# An unlisted difference fails the test, a listed one that is gone does too, and so does one without a reason.
# PATCHYARD_REWRITE_DIFFERENCES=1 writes the list anew; reasons stay, those of new entries are to be filled in.
"""


@dataclass(frozen=True)
class Difference:
    """One place where the two differ."""

    where: str
    codex: str | tuple[str, ...]
    patchyard: str | tuple[str, ...]
    reason: str = ""

    @property
    def key(self) -> tuple[str, object, object]:
        """All but the reason."""
        return self.where, self.codex, self.patchyard


def compare(case: Case, codex: Observed, patchyard: Observed) -> list[Difference]:
    """What differs, in order."""
    found: list[Difference] = []
    for number in range(max(len(codex.requests), len(patchyard.requests))):
        found += _compare_requests(f"request {number + 1}", _at(codex.requests, number), _at(patchyard.requests, number))
    found += _compare_values("turns", {"end": " ".join(codex.ends)}, {"end": " ".join(patchyard.ends)})
    found += _compare_values("rules", {"broken": " ".join(codex.violations)}, {"broken": " ".join(patchyard.violations)})
    found += _compare_values("file", codex.files, patchyard.files)
    names = {name for name in (*codex.offer, *patchyard.offer) if any(re.fullmatch(p, name) for p in case.offer)}
    offers = [{name: value for name, value in side.offer.items() if name in names} for side in (codex, patchyard)]
    differing = _compare_values("", *offers)
    only_one_has = {d.where for d in differing if NOTHING in (d.codex, d.patchyard)}
    # The parameters of a tool that only one offers are no news.
    return found + [d for d in differing if d.where.partition(",")[0] not in only_one_has - {d.where}]


def _at(requests: Sequence[tuple[str, ...]], number: int) -> tuple[str, ...] | None:
    return requests[number] if number < len(requests) else None


def _compare_requests(where: str, codex: tuple[str, ...] | None, patchyard: tuple[str, ...] | None) -> list[Difference]:
    if codex is None or patchyard is None:
        return [Difference(where, "not sent" if codex is None else codex, "not sent" if patchyard is None else patchyard)]
    matcher = difflib.SequenceMatcher(a=codex, b=patchyard, autojunk=False)
    return [
        Difference(where, codex[a:b] or NOTHING, patchyard[c:d] or NOTHING)
        for kind, a, b, c, d in matcher.get_opcodes()
        if kind != "equal"
    ]


def _compare_values(where: str, codex: Mapping[str, str], patchyard: Mapping[str, str]) -> list[Difference]:
    names = dict.fromkeys((*codex, *patchyard))
    return [
        Difference(f"{where} {name}".strip(), codex.get(name, NOTHING), patchyard.get(name, NOTHING))
        for name in names
        if codex.get(name) != patchyard.get(name)
    ]


def load() -> dict[str, list[Difference]]:
    """The golden list."""
    listed = yaml.safe_load(FILE.read_text()) or {} if FILE.exists() else {}
    return {name: [Difference(**_frozen(entry)) for entry in entries] for name, entries in listed.items()}


def _frozen(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}


def rewrite(found: Mapping[str, Sequence[Difference]], known: Mapping[str, Sequence[Difference]], order: Sequence[str]) -> None:
    """Write the list with what was found; scripts that did not run keep their entries, entries their reasons."""
    merged = {**known, **{name: [_with_reason(d, known.get(name, ())) for d in entries] for name, entries in found.items()}}
    plain = {
        name: [
            {
                "where": d.where,
                "codex": list(d.codex) if isinstance(d.codex, tuple) else d.codex,
                "patchyard": list(d.patchyard) if isinstance(d.patchyard, tuple) else d.patchyard,
                "reason": d.reason,
            }
            for d in merged[name]
        ]
        for name in order
        if merged.get(name)
    }
    FILE.write_text(_HEAD + yaml.safe_dump(plain, allow_unicode=True, sort_keys=False, width=124))


def _with_reason(difference: Difference, known: Sequence[Difference]) -> Difference:
    """The reason of the same entry, else of one in the same place."""
    same = [d for d in known if d.key == difference.key] or [d for d in known if d.where == difference.where]
    return Difference(*difference.key, reason=same[0].reason if same else "")
