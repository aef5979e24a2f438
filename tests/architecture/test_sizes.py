"""Files, functions and folders stay small. The ratchet names each offender; the limits are style.md's."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("api", "workers", "observability", "patchyard", "sandbox_images", "scripts")
FILE_LINES, FUNCTION_LINES, FOLDER_FILES, SCRIPT_LINES = 500, 60, 12, 100
BROAD_HANDLERS_PERCENT = 5
# Folders whose files are a list by nature: one file per command, route or shape.
WIDE_FOLDERS = {
    "api": 16,
    "patchyard/adapters/queue": 14,
    "patchyard/agent": 20,
    "patchyard/protocol": 16,
    "patchyard/testing": 16,
    "scripts": 20,
}


def _sources() -> Iterator[Path]:
    for top in PRODUCT:
        yield from sorted((ROOT / top).rglob("*.py"))


def test_no_file_is_longer_than_the_limit() -> None:
    offenders = []
    for path in _sources():
        limit = SCRIPT_LINES if path.is_relative_to(ROOT / "scripts") else FILE_LINES
        lines = path.read_text().count("\n")
        if lines > limit:
            offenders.append(
                f"{path.relative_to(ROOT)}:{limit}: {lines} lines, at most {limit}: split it by what changes together"
            )
    assert offenders == []


def test_no_function_is_longer_than_the_limit() -> None:
    offenders = []
    for path in _sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    offenders.append(
                        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} has {lines} lines, at most {FUNCTION_LINES}"
                    )
    assert offenders == []


def test_no_folder_is_a_drawer() -> None:
    folders: dict[str, int] = {}
    for path in _sources():
        if path.name != "__init__.py":
            name = str(path.parent.relative_to(ROOT))
            folders[name] = folders.get(name, 0) + 1
    offenders = [f"{n}: {k} files" for n, k in folders.items() if k > WIDE_FOLDERS.get(n, FOLDER_FILES)]
    assert offenders == []


def test_broad_handlers_are_rare() -> None:
    broad, handlers = [], 0
    for path in _sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler):
                handlers += 1
                names = {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)} if node.type else {"BaseException"}
                cleans_up = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
                if names & {"Exception", "BaseException"} and not cleans_up:
                    broad.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert len(broad) * 100 <= BROAD_HANDLERS_PERCENT * handlers, f"{len(broad)} of {handlers} handlers are broad: {broad}"


def test_no_test_sleeps() -> None:
    """A test that sleeps is slow when it passes and flaky when it fails: wait for an event instead."""
    offenders = []
    for path in sorted(set((ROOT / "tests").rglob("*.py")) - _free_to_sleep()):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "asyncio.sleep") and _waits(node):
                offenders.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert offenders == []


def _free_to_sleep() -> set[Path]:
    """Recorded data, the load that chaos makes, and the one place that asks a real server again under a deadline."""
    folders = (ROOT / "tests/fixtures", ROOT / "tests/chaos")
    return {path for folder in folders for path in folder.rglob("*.py")} | {ROOT / "tests/conformance/queue/kit.py"}


def _waits(sleep: ast.Call) -> bool:
    return bool(sleep.args) and ast.unparse(sleep.args[0]) != "0"
