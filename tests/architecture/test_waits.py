"""No test fails because the machine is slow: waits are long, and how long something took is no assertion."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.waiting import WAIT_S

ROOT = Path(__file__).resolve().parents[2]
_CLOCKS = ("time.monotonic", "time.perf_counter", "time.time", "time.process_time")
_FREE = ("tests/fixtures", "tests/architecture", "tests/chaos/worker.py")


def _trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / "tests").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(_FREE):
            yield name, ast.parse(path.read_text())


def _limit(call: ast.Call) -> float | None:
    """The number that ends this wait for something that should happen."""
    name = ast.unparse(call.func)
    if name == "asyncio.wait":
        return None  # shows that something does not happen yet
    given = [keyword.value for keyword in call.keywords if keyword.arg == "timeout"]
    if name == "asyncio.timeout":
        given = call.args[:1]
    elif name == "asyncio.wait_for":
        given += call.args[1:2]
    numbers = [node.value for node in given if isinstance(node, ast.Constant) and isinstance(node.value, int | float)]
    return numbers[0] if numbers else None


def test_waits_are_long() -> None:
    offenders = [
        f"{name}:{node.lineno}: {ast.unparse(node.func)} waits {limit:g} s: take WAIT_S or PROCESS_S of tests/waiting.py"
        for name, tree in _trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and (limit := _limit(node)) is not None and limit < WAIT_S
    ]
    assert not offenders, "\n".join(offenders)


def test_nothing_has_to_be_quick() -> None:
    """A lower bound holds on every machine; an upper one is a matter of bench/."""
    offenders = [
        f"{name}:{node.lineno}: {ast.unparse(node)}: show it by the order of events, or measure it in bench/"
        for name, tree in _trees()
        for assertion in ast.walk(tree)
        if isinstance(assertion, ast.Assert)
        for node in ast.walk(assertion.test)
        if isinstance(node, ast.Compare) and _is_upper_bound(node)
    ]
    assert not offenders, "\n".join(offenders)


def _is_upper_bound(compare: ast.Compare) -> bool:
    """`clock() - begun < a number`."""
    took = any(
        isinstance(part, ast.BinOp)
        and any(isinstance(call, ast.Call) and ast.unparse(call.func) in _CLOCKS for call in ast.walk(part))
        for part in (compare.left, *compare.comparators[:-1])
    )
    last = compare.comparators[-1]
    return took and isinstance(compare.ops[-1], ast.Lt | ast.LtE) and isinstance(last, ast.Constant)
