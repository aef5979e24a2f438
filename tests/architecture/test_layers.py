"""The layer contracts really bite: a forbidden import in a copy of the tree is reported with place and remedy."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("tree")
    for name in ("api", "workers", "observability", "patchyard"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.json", "static"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


def _run(tree: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"}
    return subprocess.run([sys.executable, "-m", *command], cwd=tree, env=env, capture_output=True, text=True)


def _layers(tree: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"}
    code = "import sys; from importlinter.cli import lint_imports_command as c; sys.exit(c(['--no-cache']))"
    return subprocess.run([sys.executable, "-c", code], cwd=tree, env=env, capture_output=True, text=True)


@pytest.mark.parametrize(
    "source",
    [
        "import httpx",
        "import httpx as transport",
        "from httpx import AsyncClient",
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import httpx",
        "from patchyard.adapters import queue",
    ],
    ids=["plain", "aliased", "from", "type_checking", "upper_layer"],
)
def test_a_forbidden_import_is_refused_with_place_and_remedy(tree: Path, source: str) -> None:
    victim = tree / "patchyard/agent/forbidden.py"
    victim.write_text(f'"""Breaks a rule."""\n\n{source}\n')
    try:
        run = _layers(tree)
    finally:
        victim.unlink()
    assert run.returncode == 1, run.stdout
    line = 3 + source.count("\n")
    assert re.search(rf"patchyard\.agent\.forbidden -> \S+ \(l\.{line}\)", run.stdout), run.stdout
    assert "Remedy:" in run.stdout


@pytest.mark.parametrize(
    "source",
    [
        'import importlib\n\nqueue = importlib.import_module("httpx")\n',
        'from importlib import import_module\n\nqueue = import_module("httpx")\n',
    ],
    ids=["importlib", "import_module"],
)
def test_a_dynamic_import_is_refused_with_place_and_remedy(tree: Path, source: str) -> None:
    victim = tree / "patchyard/agent/forbidden.py"
    victim.write_text(f'"""Breaks a rule."""\n\n{source}')
    try:
        run = _run(tree, "ruff", "check", "--output-format", "concise", "patchyard/agent/forbidden.py")
    finally:
        victim.unlink()
    assert run.returncode == 1
    assert re.search(r"patchyard/agent/forbidden\.py:\d+:\d+: TID251", run.stdout), run.stdout
    assert "import at the top" in run.stdout


def test_an_unlisted_module_is_refused(tree: Path) -> None:
    stray = tree / "patchyard/utils"
    stray.mkdir()
    (stray / "__init__.py").write_text('"""A room without a name."""\n')
    try:
        run = _layers(tree)
    finally:
        shutil.rmtree(stray)
    assert run.returncode == 1
    assert "patchyard.utils" in run.stdout


def test_the_tree_itself_keeps_its_layers(tree: Path) -> None:
    run = _layers(tree)
    assert run.returncode == 0, run.stdout
