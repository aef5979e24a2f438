"""The rules that a client of a Responses API must keep, checked on each request without keeping its history."""

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from patchyard.replay.violations import ViolationKind

Items = Sequence[Mapping[str, Any]]

_OUTPUT_OF = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
_CALL_OF = {output: call for call, output in _OUTPUT_OF.items()}
DIGEST_BYTES = 12


class Finding(NamedTuple):
    """A rule that was broken."""

    kind: ViolationKind
    message: str


@dataclass
class History:
    """What is remembered of a thread: a digest per input item of its window, and the calls of the last answer."""

    window: str | None = None
    digests: bytearray = field(default_factory=bytearray)
    labels: list[str] = field(default_factory=list)
    emitted_calls: list[str] = field(default_factory=list)
    own_items: dict[int, bytes] = field(default_factory=dict)
    """By place: items that the server joined itself, as digests of what the model said in them."""

    @property
    def items(self) -> int:
        """Items of the newest request."""
        return len(self.labels)

    def own(self, first: int, output: Items) -> None:
        """These items, from place `first`, are the server's own words."""
        self.own_items |= {first + index: _essence(item) for index, item in enumerate(output)}

    def settle(self, items: Items, digests: bytes) -> None:
        """A client that tells the server's own items in other words (no status, no annotations) rewrites nothing."""
        for place in [place for place in self.own_items if place < min(len(items), self.items)]:
            if _essence(items[place]) == self.own_items[place]:
                at = place * DIGEST_BYTES
                self.digests[at : at + DIGEST_BYTES] = digests[at : at + DIGEST_BYTES]

    def record(self, items: Items, digests: bytes, window: str | None) -> None:
        """Take the request as the one that the next must extend."""
        if window != self.window:
            self.own_items.clear()
        self.window = window
        start = self.items if self.items <= len(items) and digests.startswith(self.digests) else 0
        del self.digests[start * DIGEST_BYTES :], self.labels[start:]
        self.digests += digests[start * DIGEST_BYTES :]
        self.labels += [_label(item) for item in items[start:]]


def digest_items(items: Items) -> bytes:
    """A digest per item, joined. The order of keys does not matter."""
    return b"".join(
        hashlib.blake2b(json.dumps(item, sort_keys=True).encode(), digest_size=DIGEST_BYTES).digest() for item in items
    )


def _essence(item: Mapping[str, Any]) -> bytes:
    """A digest of what the model said, whatever else stands in the item."""
    names = ("type", "role", "call_id", "name", "arguments", "input", "encrypted_content")
    kept = {name: item[name] for name in names if item.get(name) is not None}
    content = item.get("content")
    if isinstance(content, list):
        kept["texts"] = [part.get("text") for part in content if isinstance(part, Mapping)]
    return digest_items([kept])


def _label(item: Mapping[str, Any]) -> str:
    """Few different texts, so that a long history costs a pointer an item."""
    kind = str(item.get("type", "message"))
    return sys.intern(f"{kind} of {item['role']}" if "role" in item else kind)


def check_pairs(items: Items) -> list[Finding]:
    """Calls and outputs pair up, in the same order."""
    findings: list[Finding] = []
    calls: dict[str, str] = {}
    answered: list[str] = []
    seen: set[str] = set()
    for index, item in enumerate(items):
        kind, call_id = str(item.get("type")), str(item.get("call_id"))
        if kind in _OUTPUT_OF:
            if call_id in calls:
                findings.append(Finding(ViolationKind.DUPLICATE_CALL, f"input[{index}]: call {call_id} is there twice"))
            calls[call_id] = kind
        elif kind in _CALL_OF:
            if call_id not in calls:
                findings.append(
                    Finding(ViolationKind.ORPHAN_OUTPUT, f"input[{index}]: output of {call_id}, but no such call before it")
                )
            elif call_id in seen:
                findings.append(Finding(ViolationKind.DUPLICATE_OUTPUT, f"input[{index}]: {call_id} is answered twice"))
            else:
                answered.append(call_id)
                if _CALL_OF[kind] != calls[call_id]:
                    findings.append(
                        Finding(ViolationKind.OUTPUT_KIND, f"input[{index}]: {calls[call_id]} {call_id} is answered by {kind}")
                    )
            seen.add(call_id)
    for call_id in calls:
        if call_id not in seen:
            findings.append(Finding(ViolationKind.UNANSWERED_CALL, f"call {call_id} has no output"))
    in_call_order = [call_id for call_id in calls if call_id in set(answered)]
    if in_call_order != answered:
        first = next(a for a, b in zip(answered, in_call_order, strict=True) if a != b)
        findings.append(Finding(ViolationKind.OUTPUT_ORDER, f"outputs are not in the order of their calls; first at {first}"))
    return findings


def check_history(history: History, items: Items, digests: bytes, window: str | None) -> list[Finding]:
    """Within a window the input extends the previous one, and holds the calls of the last answer."""
    if window != history.window:
        return []
    findings: list[Finding] = []
    if not digests.startswith(history.digests):
        findings.append(Finding(ViolationKind.REWRITTEN_HISTORY, _first_difference(history, items, digests)))
    there = {str(item.get("call_id")) for item in items if item.get("type") in _OUTPUT_OF}
    findings += [
        Finding(ViolationKind.LOST_CALL, f"call {call_id} of the last answer is not in the input")
        for call_id in history.emitted_calls
        if call_id not in there
    ]
    return findings


def _first_difference(history: History, items: Items, digests: bytes) -> str:
    for index in range(history.items):
        start = index * DIGEST_BYTES
        if index >= len(items):
            return f"input ends after {len(items)} items; the previous request had {history.items}"
        if digests[start : start + DIGEST_BYTES] != history.digests[start : start + DIGEST_BYTES]:
            return f"input[{index}] is now `{_label(items[index])}` and was `{history.labels[index]}` with other content"
    return "the input changed"
