"""The main job on a real bug: pathspec 0.12.0 is fetched, an agent fixes it, the patch is verified with the next release's test.

The model is the replay server, so that no key is needed; everything else is the product as users run it.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.released_bugs import bugs, prepare
from bench.service import CLI, STATE, fix, replay_model, service


def say(title: str) -> None:
    """A headline."""
    print(f"\n\033[1m━━ {title}\033[0m" if sys.stdout.isatty() else f"\n== {title}", flush=True)


def show_record(task: str, env: dict[str, str]) -> None:
    """Print what the rollout holds."""
    lines = subprocess.run([*CLI, "rollout", "cat", task], env=env, check=True, capture_output=True, text=True).stdout
    kinds: dict[str, int] = {}
    for line in map(json.loads, lines.splitlines()):
        kinds[line["type"]] = kinds.get(line["type"], 0) + 1
    print(f"{sum(kinds.values())} numbered records: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))


def stored_rollout(thread: str) -> str:
    """Address of the rollout in the object store, where it outlives the service."""
    return next((STATE / "demo/objects").glob(f"*/rollouts/*/*/*/{thread}/*.jsonl")).as_uri()


def main() -> int:
    """0 only when the patch was verified."""
    started = time.monotonic()
    bug = bugs()[0]
    say(f"Fetching {bug.package} {bug.buggy}, a release with a real bug")
    repository, overlay = prepare(bug, STATE / "cache/bugs")
    patch = STATE / "demo.patch"
    patch.unlink(missing_ok=True)
    with replay_model(bug.script) as url, service(STATE / "demo", url) as env:
        say(f"Issue: {bug.instruction}")
        task = fix(bug, repository, overlay, patch, env)
        say("The record (rollout)")
        show_record(task["id"], env)
        say("Where the time went (trace)")
        subprocess.run([*CLI, "trace", task["id"]], env=env, check=True)
    say("The patch")
    print(patch.read_text() if patch.exists() else "none")
    verified = bool(task["verified"]) and task["status"] == "succeeded"
    result = {name: task[name] for name in ("thread_id", "status", "verified", "trace_id")}
    result |= {"task_id": task["id"], "patch_path": str(patch), "rollout_url": stored_rollout(task["thread_id"])}
    result["seconds"] = round(time.monotonic() - started, 2)
    (STATE / "demo.json").write_text(json.dumps(result, indent=1) + "\n")
    usage = task["usage"] or {}
    spent = f"{usage.get('input_tokens', 0)} tokens in, {usage.get('output_tokens', 0)} out, {result['seconds']} s in all"
    say("verified" if verified else f"NOT verified: {task['status']} ({task['reason']})")
    print(f"{spent}; summary in .patchyard/demo.json")
    print(
        "With a real model: PATCHYARD_MODEL_BASE_URL=… PATCHYARD_MODEL_API_KEY=… .venv/bin/patchyard fix REPO --issue TEXT --verify CMD"
    )
    return 0 if verified else 1


if __name__ == "__main__":
    sys.exit(main())
