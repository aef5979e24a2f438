"""Keeps what a release has stored after the demo's job (Redis, catalog, objects) as a fixture of the upgrade tests.

Run once for each release: `.venv/bin/python scripts/keep_release.py` writes tests/fixtures/upgrade/<version>.tar.gz.
"""

import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.released_bugs import bugs, prepare
from bench.service import ROOT, STATE, fix, replay_model, service
from patchyard import __version__


def main() -> int:
    """0 when the job was verified and kept."""
    bug = bugs()[0]
    # A path that says nothing about the machine: it is in the task's record.
    place = Path(tempfile.gettempdir()) / "patchyard-release"
    shutil.rmtree(place, ignore_errors=True)
    source, overlay = prepare(bug, STATE / "cache/bugs")
    repository = place / bug.package
    shutil.copytree(source, repository)
    with replay_model(bug.script) as url, service(place / "home", url) as env:
        task = fix(bug, repository, overlay, place / "fix.patch", env, quiet=True)
    if not task["verified"]:
        print(f"not kept: the task is {task['status']} ({task['reason']})")
        return 1
    (place / "home/task.json").write_text(json.dumps(task, indent=1) + "\n")
    target = ROOT / f"tests/fixtures/upgrade/{__version__}.tar.gz"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w:gz") as tar:
        for name in ("task.json", "catalog.db", "objects", "redis/appendonlydir"):
            tar.add(place / "home" / name, arcname=name)
    shutil.rmtree(place)
    print(f"kept {target.relative_to(ROOT)} ({target.stat().st_size // 1024} KiB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
