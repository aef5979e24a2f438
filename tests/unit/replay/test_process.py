"""`python -m patchyard.replay serve` as a process."""

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PROCESS_S, WAIT_S

SCRIPT = "steps: [{items: [{message: x}]}]"


def start(script: Path, *more: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "patchyard.replay", "serve", "--script", str(script), *more]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ask(base_url: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(f"{base_url}/responses", json.dumps(body).encode())
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=WAIT_S) as answer:
        answer.read()


def good(thread: str) -> dict[str, Any]:
    return {"model": "m", "input": "hi", "stream": True, "prompt_cache_key": thread}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_prints_its_address_and_ends_with_0_without_violations(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "s.yaml").write_text(SCRIPT)
    with start(tmp_path / "s.yaml") as process:
        assert process.stdout is not None
        base_url = process.stdout.readline().strip()
        ask(base_url, good("a"))
        ask(base_url, good("b"))
        process.send_signal(number)
        out, err = process.communicate(timeout=PROCESS_S)
    assert (process.returncode, out, err) == (0, "2 requests, 0 violations\n", "")


def test_violations_are_printed_as_they_come_and_end_with_1(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCRIPT)
    with start(tmp_path / "s.yaml", "--json", "--until-eof") as process:
        assert process.stdout is not None
        base_url = json.loads(process.stdout.readline())["base_url"]
        ask(base_url, good("a") | {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]})
        violation = json.loads(process.stdout.readline())["violation"]
        assert (violation["kind"], violation["thread"]) == ("orphan_output", "a")
        out, _ = process.communicate(timeout=PROCESS_S)
    assert (process.returncode, json.loads(out)) == (1, {"requests": 1, "violations": 1})


def test_what_can_not_be_served_ends_with_2_and_one_message(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("steps:\n  - itemz: 1\n")
    for script, says in ((tmp_path / "s.yaml", "line 2, steps[0].itemz"), (tmp_path / "none.yaml", "No such file")):
        with start(script) as process:
            out, err = process.communicate(timeout=PROCESS_S)
        assert (process.returncode, out) == (2, "")
        assert says in err
        assert "Traceback" not in err


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCRIPT)
    with start(tmp_path / "s.yaml") as first:
        assert first.stdout is not None
        port = first.stdout.readline().strip().rpartition(":")[2].partition("/")[0]
        with start(tmp_path / "s.yaml", "--port", port) as second:
            _, err = second.communicate(timeout=PROCESS_S)
        first.terminate()
        first.communicate(timeout=PROCESS_S)
    assert second.returncode == 2
    assert "--port" in err
