"""Small repositories with a bug."""

import os
import subprocess
from pathlib import Path

FIX = """*** Begin Patch
*** Update File: calc.py
@@
 def add(a, b):
-    return a - b
+    return a + b
*** End Patch
"""
WRONG_FIX = FIX.replace("+    return a + b", "+    return a * b")
BETTER_FIX = FIX.replace("-    return a - b", "-    return a * b")
VERIFY = "python3 -m pytest -q"
TEST = "from calc import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n"
ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{role}_{part}": "t@t" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")},
}


def git(folder: Path, *args: str) -> None:
    subprocess.run(["git", *args], cwd=folder, env=ENV, check=True, capture_output=True)


def buggy_repository(parent: Path, *, with_test: bool = True) -> Path:
    folder = parent / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (folder / "AGENTS.md").write_text("Run pytest.\n")
    if with_test:
        (folder / "test_calc.py").write_text(TEST)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "base")
    return folder
