"""What a program sent to the model, reduced to its structure: one line per item, without ids, times, paths and wording."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchyard.replay.log import RequestEntry
from tests.conformance.codex_cli.outputs import shape_of_output

_NOTES = {
    "environment": r"<environment_context>.*</environment_context>",
    "turn aborted": r"<turn_aborted>.*</turn_aborted>",
}
_HOOK_PROMPT = re.compile(r"<hook_prompt[^>]*>(.*)</hook_prompt>", re.DOTALL)
_AGENTS_MD = re.compile(r"# AGENTS\.md instructions for .*?<INSTRUCTIONS>\n(.*)\n</INSTRUCTIONS>", re.DOTALL)
_SUMMARY = re.compile(r"\S.*(SUMMARY: [^\n]*)\s*(?:</\w+>)?", re.DOTALL)
_HOOK_INPUT = re.compile(r"hook.*\.json")
_HOOK_VALUES = (
    "hook_event_name", "last_assistant_message", "model", "permission_mode", "prompt", "source", "stop_hook_active",
    "tool_input", "tool_name", "trigger",
)  # fmt: skip
_BODY_VALUES = ("tool_choice", "parallel_tool_calls", "store", "stream", "include", "text", "reasoning", "model")
_HEADERS = ("session-id", "thread-id", "x-client-request-id", "accept", "content-type", "traceparent")


@dataclass(frozen=True)
class Observed:
    """All that is compared of one run."""

    requests: tuple[tuple[str, ...], ...]
    """Of each request what the one before did not have: its kind, and a line per item."""
    ends: tuple[str, ...]
    """How each turn ended."""
    files: Mapping[str, str]
    """The workspace afterwards."""
    violations: tuple[str, ...]
    """Of the replay server's rules."""
    offer: Mapping[str, str]
    """Body fields, headers and tools of the first request, fields of the items of all."""


def observe(entries: Sequence[RequestEntry], ends: Sequence[str], workspace: Path) -> Observed:
    """Reduce a run."""
    requests, before, window = [], list[str](), entries[0].window if entries else None
    for entry in entries:
        items = _Items(str(workspace), kind=entry.kind).shapes(entry.input)
        marks = (
            [f"-- {entry.kind}{'' if (entry.body or {}).get('tools') else ' without tools'}"] if entry.kind != "turn" else []
        )
        if entry.wire == "websocket":
            marks.append(
                f"-- over a WebSocket, {entry.new_items} items sent" if entry.new_items else "-- over a WebSocket, whole"
            )
        if entry.window != window or items[: len(before)] != before:
            marks.append("-- new window" if entry.window != window else "-- changes what was sent before")
            before = []
        requests.append((*marks, *items[len(before) :]) or ("the same again",))
        before, window = items, entry.window
    violations = [text.partition(":")[0] for entry in entries for text in entry.violations]
    return Observed(tuple(requests), tuple(ends), _files(workspace), tuple(violations), _offer(entries))


def _files(workspace: Path) -> dict[str, str]:
    found = {}
    for path in sorted(path for path in workspace.rglob("*") if path.is_file()):
        mode = "executable, " if path.stat().st_mode & 0o100 else ""
        text = path.read_bytes().decode("utf-8", "replace")
        if _HOOK_INPUT.fullmatch(path.name):
            told = json.loads(text)
            text = json.dumps({key: told[key] if key in _HOOK_VALUES else "given" for key in sorted(told)}, ensure_ascii=False)
        found[str(path.relative_to(workspace))] = f"{mode}{text}"
    return found


def _offer(entries: Sequence[RequestEntry]) -> dict[str, str]:
    if not entries:
        return {}
    body, headers = entries[0].body or {}, entries[0].headers
    found = {f"field {name}": "sent" for name in body if name not in (*_BODY_VALUES, "tools", "input")}
    found |= {f"field {name}": json.dumps(body[name], sort_keys=True) for name in _BODY_VALUES if name in body}
    found |= {f"header {name}": "sent" for name in _HEADERS if name in headers}
    for tool in body.get("tools", []):
        name = f"tool {tool.get('name') or tool['type']}"
        found[name] = str(tool["type"])
        schema = tool.get("parameters") or {}
        for parameter, value in schema.get("properties", {}).items():
            needed = "required" if parameter in schema.get("required", []) else "optional"
            found[f"{name}, {parameter}"] = f"{needed} {value.get('type', 'any')}"
    fields: dict[str, set[str]] = {}
    for item in (item for entry in entries for item in entry.input):
        kind = str(item.get("type", "message"))
        label = f"item {kind} {item['role']}" if kind == "message" else f"item {kind}"
        fields.setdefault(label, set()).update(item)
    return found | {label: " ".join(sorted(names)) for label, names in fields.items()}


class _Items:
    """The items of one request. Calls are numbered in their order."""

    def __init__(self, workspace: str, *, kind: str) -> None:
        self._workspace = workspace
        self._kind = kind
        self._calls: dict[str, str] = {}

    def shapes(self, items: Sequence[Mapping[str, Any]]) -> list[str]:
        """One line each."""
        shapes = [self._shape(item) for item in items]
        if self._kind == "compaction" and items and items[-1].get("role") == "user":
            shapes[-1] = "message user: asks for a summary"
        return shapes

    def _shape(self, item: Mapping[str, Any]) -> str:
        match item.get("type", "message"):
            case "message":
                return self._message(item)
            case "reasoning":
                text = "\n\n".join(part["text"] for part in item.get("summary", []))
                return f"reasoning {json.dumps(text)}{', encrypted' if item.get('encrypted_content') else ''}"
            case "function_call":
                arguments = re.sub(r'("session_id": ?)\d{4,}', r"\1SESSION", item["arguments"])
                return f"call {self._number(item)} {item['name']} {self._without_paths(arguments)}"
            case "custom_tool_call":
                return f"freeform call {self._number(item)} {item['name']} {json.dumps(item['input'])}"
            case "function_call_output":
                return f"output {self._calls.get(item['call_id'], 'without call')}: {self._output(item)}"
            case "custom_tool_call_output":
                return f"freeform output {self._calls.get(item['call_id'], 'without call')}: {self._output(item)}"
            case other:
                return str(other)

    def _number(self, item: Mapping[str, Any]) -> str:
        return self._calls.setdefault(item["call_id"], f"#{len(self._calls) + 1}")

    def _output(self, item: Mapping[str, Any]) -> str:
        output = item["output"]
        if isinstance(output, str):
            return shape_of_output(self._without_paths(output))
        return " + ".join(self._content(part) for part in output)

    def _content(self, part: Mapping[str, Any]) -> str:
        if part["type"] == "input_image":
            head = part["image_url"].partition(",")[0]
            return f"{head}{', detail ' + part['detail'] if part.get('detail') else ''}"
        return json.dumps(self._without_paths(part.get("text", part["type"])))

    def _message(self, item: Mapping[str, Any]) -> str:
        role = item["role"]
        if role == "developer" and any(part["text"].startswith("<") for part in item["content"]):
            return f"message {role}: instructions"
        parts = [self._part(part.get("text", part["type"]), role) for part in item["content"]]
        phase = f", {item['phase']}" if item.get("phase") else ""
        return f"message {role}: {' + '.join(parts)}{phase}"

    def _part(self, text: str, role: str) -> str:
        if found := _AGENTS_MD.fullmatch(text):
            return f"AGENTS.md {json.dumps(found[1].strip())}"
        for name, pattern in _NOTES.items():
            if re.fullmatch(pattern, text, re.DOTALL):
                return name
        if found := _HOOK_PROMPT.fullmatch(text):
            return f"a hook says {json.dumps(found[1])}"
        if role == "user" and (found := _SUMMARY.fullmatch(text)):
            return f"introduced {json.dumps(found[1])}"
        return json.dumps(self._without_paths(text))

    def _without_paths(self, text: str) -> str:
        return text.replace(self._workspace, "/workspace")
