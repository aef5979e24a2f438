"""All eight released bugs through the main job: one service, the same replay server for all, a table at the end."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.released_bugs import Bug, bugs, prepare
from bench.service import STATE, fix, replay_model, service


def combined_script(chosen: list[Bug], folder: Path) -> Path:
    """One script that tells the bugs apart by their issue text."""
    threads = []
    for bug in chosen:
        script = yaml.safe_load(bug.script.read_text())
        threads.append({"match": {"contains": bug.instruction}, "steps": script["steps"]})
    path = folder / "bugs.yaml"
    path.write_text(yaml.safe_dump({"threads": threads}, sort_keys=False, allow_unicode=True))
    return path


def main() -> int:
    """0 only when all were verified."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="ids of bugs (default: all)")
    wanted = parser.parse_args().only
    chosen = [bug for bug in bugs() if not wanted or bug.id in wanted]
    rows, failed = [], 0
    with tempfile.TemporaryDirectory() as folder:
        script = combined_script(chosen, Path(folder))
        with replay_model(script) as url, service(STATE / "bugs", url) as env:
            for bug in chosen:
                repository, overlay = prepare(bug, STATE / "cache/bugs")
                started = time.monotonic()
                task = fix(bug, repository, overlay, Path(folder) / f"{bug.id}.patch", env, quiet=True)
                seconds = time.monotonic() - started
                passed = task["status"] == "succeeded" and bool(task["verified"])
                failed += not passed
                rows.append(f"{bug.id:<28}{'verified' if passed else task['reason']:<24}{seconds:>7.1f} s")
                print(rows[-1], flush=True)
    print(f"{len(rows) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
