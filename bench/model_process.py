"""The benchmarks' model servers as processes of their own, so that their CPU and their pauses are not ours."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


@contextmanager
def model_process(module: str, *arguments: str) -> Iterator[int]:
    """Run a module that prints its port; that port."""
    process = subprocess.Popen([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()


def ask(port: int, path: str, method: str = "GET") -> dict[str, Any]:
    """A JSON answer of such a server."""
    with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)) as answer:
        return dict(json.load(answer))
