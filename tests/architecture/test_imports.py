"""Importing does nothing, and a process loads only what it needs."""

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("api", "workers", "observability", "patchyard")


def _modules() -> list[str]:
    names = []
    for top in PRODUCT:
        names.append(top)
        names += [m.name for m in pkgutil.walk_packages([str(ROOT / top)], f"{top}.") if not m.name.endswith("__main__")]
    return [name for name in names if ".migrations." not in name]


def _python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **env}
    return subprocess.run([sys.executable, "-c", code], cwd="/", env=clean, capture_output=True, text=True)


def test_importing_does_nothing(tmp_path: Path) -> None:
    """No thread, no socket, no file, no process, no output: importing every module only defines things."""
    code = f"""
import sys, threading
seen = []
WATCHED = ("socket.connect", "socket.bind", "subprocess.Popen", "os.mkdir", "os.remove", "os.rename", "os.system")
def watch(event, args):
    if event == "socket.bind" and args[1] == ("::1", 0):
        return  # urllib3 looks whether this machine has IPv6
    if event in WATCHED or event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        seen.append((event, args))
sys.addaudithook(watch)
for name in {_modules()!r}:
    __import__(name)
assert not seen, seen
assert threading.active_count() == 1, threading.enumerate()
"""
    run = _python(code)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_nothing_is_imported_by_the_builtin() -> None:
    """`__import__` hides from the layer check and from the linter's ban list."""
    found = [
        str(path.relative_to(ROOT))
        for top in PRODUCT
        for path in (ROOT / top).rglob("*.py")
        if "__import__(" in path.read_text()
    ]
    assert found == []


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("patchyard.cli.main", ("boto3", "celery", "docker", "fastapi", "opentelemetry.sdk", "redis", "sqlalchemy", "uvicorn")),
        ("patchyard.agent", ("boto3", "celery", "docker", "fastapi", "httpx", "opentelemetry", "redis", "sqlalchemy")),
        ("patchyard.replay", ("boto3", "celery", "docker", "fastapi", "opentelemetry", "redis", "sqlalchemy")),
        ("api.app", ("docker", "patchyard.agent.session", "patchyard.adapters.sandbox", "patchyard.adapters.model")),
        ("workers.app", ("fastapi", "uvicorn", "api")),
    ],
)
def test_a_process_loads_no_heavy_library_that_it_does_not_need(module: str, forbidden: tuple[str, ...]) -> None:
    run = _python(f"import sys, {module}; print(*[n for n in {forbidden!r} if n in sys.modules])")
    assert (run.returncode, run.stdout.strip()) == (0, ""), run.stderr
