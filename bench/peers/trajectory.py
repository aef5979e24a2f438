"""The trajectory that every system runs: ten commands on a small repository (read, grep, edit, two test runs), then an answer."""

import subprocess
from pathlib import Path

COMMANDS = (
    "ls",
    "cat README.txt",
    "grep -rn 'def ' calc",
    "sed -n 1,40p calc/ops.py",
    "python3 -m pytest -q -p no:cacheprovider tests || true",
    "sed -n 1,40p tests/test_ops.py",
    "sed -i 's/return a - b  # sum/return a + b/' calc/ops.py",
    "grep -n 'return' calc/ops.py",
    "python3 -m pytest -q -p no:cacheprovider tests",
    "ls calc",
)
LIGHT = frozenset({0, 1, 2, 3, 5, 7, 9})
"""Commands whose own work is a few milliseconds: the gap after them is the system's."""
ANSWER = "add() subtracted; it adds now (calc/ops.py:2). Both tests pass."
PROMPT = "tests/test_ops.py fails: add() gives a wrong sum. Fix it."

_FILES = {
    "README.txt": "A very small calculator.\n",
    "calc/__init__.py": "",
    "calc/ops.py": "def add(a, b):\n    return a - b  # sum\n\n\ndef mul(a, b):\n    return a * b\n",
    "tests/test_ops.py": "from calc.ops import add, mul\n\n\ndef test_add():\n    assert add(2, 3) == 5\n\n\n"
    "def test_mul():\n    assert mul(2, 3) == 6\n",
    "conftest.py": "",
}


def make_repository(folder: Path) -> Path:
    """A fresh git repository with the bug."""
    for name, text in _FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git = ["git", "-C", str(folder), "-c", "user.name=bench", "-c", "user.email=bench@localhost"]
    subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "base"], check=True)
    subprocess.run(["chmod", "-R", "a+rwX", str(folder)], check=True)
    return folder


def is_fixed(text: str) -> bool:
    """Whether `calc/ops.py` has this content after the run."""
    return "return a + b" in text
