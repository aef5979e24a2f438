"""A task's span tree, drawn with bars."""

from typing import Any

from rich.text import Text
from rich.tree import Tree

from .text import duration, one_line, safe

_BAR_WIDTH = 28
"""Characters of the time line."""
_SHOWN = (
    "status",
    "model",
    "exit_code",
    "attempt",
    "input_tokens",
    "output_tokens",
    "error",
    "reason",
    "ttft_ms",
    "budget",
    "decision",
)
"""Last parts of the attribute names that say most."""


def trace_tree(document: dict[str, Any]) -> Tree | Text:
    """The tree that GET /v1/tasks/{id}/trace answered with."""
    root = document.get("root")
    if root is None:
        return Text("There are no records yet: the task waits.")
    begin = root["start_ms"]
    whole = max(1, (root["end_ms"] or _latest(root)) - begin)
    head = Text.assemble((f"trace {document.get('trace_id') or '–'}", "dim"))
    tree = Tree(head)
    _add(tree, root, begin, whole)
    return tree


def _latest(node: dict[str, Any]) -> int:
    own: int = node["end_ms"] if node["end_ms"] is not None else node["start_ms"]
    return max([own, *(_latest(child) for child in node["children"])])


def _add(parent: Tree, node: dict[str, Any], begin: int, whole: int) -> None:
    branch = parent.add(_label(node, begin, whole))
    for child in node["children"]:
        _add(branch, child, begin, whole)


def _label(node: dict[str, Any], begin: int, whole: int) -> Text:
    start, end = node["start_ms"], node["end_ms"]
    took = "not ended" if end is None else "" if node["kind"] == "event" else duration(end - start)
    bar = _bar(start - begin, (end if end is not None else begin + whole) - begin, whole)
    facts = ", ".join(f"{key}={one_line(str(value), 60)}" for key, value in _facts(node["attributes"]))
    failed = any("error" in key for key in node["attributes"])
    return Text.assemble(
        (safe(node["name"]), "bold red" if failed else "bold"),
        (f"  {took}" if took else "", "cyan"),
        (f"  {bar}", "blue"),
        (f"  {facts}" if facts else "", "dim"),
    )


def _facts(attributes: dict[str, Any]) -> list[tuple[str, Any]]:
    found = []
    for name, value in attributes.items():
        last = name.rsplit(".", 1)[-1]
        if last in _SHOWN:
            found.append((last, value))
    return found


def _bar(start: int, end: int, whole: int) -> str:
    first = min(_BAR_WIDTH - 1, max(0, start * _BAR_WIDTH // whole))
    last = min(_BAR_WIDTH, max(first + 1, -(-end * _BAR_WIDTH // whole)))
    return "·" * first + "━" * (last - first) + "·" * (_BAR_WIDTH - last)
