"""The core runs where only pydantic and pytest are installed: it is a library of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE_TESTS = [
    f"tests/unit/{name}"
    for name in ("agent", "patch", "policy", "protocol", "rollout")
    if (ROOT / f"tests/unit/{name}").is_dir()
]


@pytest.mark.registry
@pytest.mark.timeout(300)
def test_the_core_needs_only_pydantic_and_pytest(tmp_path: Path) -> None:
    pins = [line.split(" ")[0] for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line]
    wanted = [pin for pin in pins if pin.startswith(("pydantic==", "pytest=="))]
    uv = Path(sys.executable).with_name("uv")
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, tmp_path / "venv"], check=True, env=env)
    python = tmp_path / "venv/bin/python"
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, *wanted], check=True, env=env)
    # The properties need Hypothesis; they run with everything else.
    options = [
        "-q",
        "-o",
        "addopts=--import-mode=importlib",
        "-W",
        "ignore::pytest.PytestConfigWarning",
        "--ignore-glob=*properties.py",
    ]
    run = subprocess.run([python, "-m", "pytest", *options, *CORE_TESTS], cwd=ROOT, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]
    assert " passed" in run.stdout
