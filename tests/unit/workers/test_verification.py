import asyncio
from collections.abc import Sequence

import pytest

from patchyard.agent.ports import ExitStatus, SandboxExecRequest
from patchyard.protocol.errors import ErrorCode
from workers.running.verification import (
    FEEDBACK_CHARS,
    OutputKeeper,
    VerifyRun,
    feedback,
    missing_tool,
    plain,
    run_verify,
    tail,
)


class Process:
    def __init__(self, chunks: Sequence[bytes], status: ExitStatus) -> None:
        self._chunks = list(chunks)
        self._status = status
        self.killed = False

    async def read(self) -> bytes:
        return self._chunks.pop(0) if self._chunks else b""

    async def wait(self) -> ExitStatus:
        return self._status

    async def write(self, data: bytes, *, eof: bool = False) -> None:
        assert eof

    async def resize(self, rows: int, columns: int) -> None:
        raise NotImplementedError

    async def kill(self, signal: int = 9) -> None:
        self.killed = True


class Box:
    def __init__(self, process: Process) -> None:
        self.process = process
        self.requests: list[SandboxExecRequest] = []

    async def spawn(self, request: SandboxExecRequest, *, on_patch: object = None) -> Process:
        self.requests.append(request)
        return self.process

    async def read_file(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError

    async def apply_files(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


def ended(code: int, log: bytes = b"", *, timed_out: bool = False) -> VerifyRun:
    return VerifyRun(ExitStatus(code=code, timed_out=timed_out), log, 5)


def test_the_command_runs_in_the_workspace_with_its_time_limit() -> None:
    shown: list[str] = []
    box = Box(Process([b"one\n", b"two\n"], ExitStatus(code=0)))
    run = asyncio.run(run_verify(box, "make test", timeout_s=7, show=shown.append))
    (request,) = box.requests
    assert (request.argv, request.cwd, request.limits.wall_time_s) == (("/bin/bash", "-c", "make test"), "/workspace", 7)
    assert "PATH" not in request.env  # the image's own, with whatever the set-up put there
    assert (run.passed, run.log, shown) == (True, b"one\ntwo\n", ["one\n", "two\n"])


@pytest.mark.parametrize(
    ("run", "passed", "exit_code"),
    [
        (ended(0), True, 0),
        (ended(1), False, 1),
        (ended(137, timed_out=True), False, None),
        (ended(0, timed_out=True), False, None),
    ],
)
def test_verdict(run: VerifyRun, passed: bool, exit_code: int | None) -> None:
    assert (run.passed, run.exit_code) == (passed, exit_code)


@pytest.mark.parametrize(
    ("command", "run", "tool"),
    [
        ("nosuch --x", ended(127, b"/bin/bash: line 1: nosuch: command not found\n"), "nosuch"),
        ("cd x && tox -e py", ended(127, b"bash: line 1: tox: command not found\n"), "tox"),
        ("python3 -m pytest -q", ended(1, b"/usr/bin/python3: No module named pytest\n"), "pytest"),
        ("python3 -m pytest -q", ended(1, b"E  ModuleNotFoundError: No module named 'freezegun'\n"), None),
        ("pytest", ended(1, b"1 failed\n"), None),
        ("true", ended(0), None),
    ],
)
def test_a_tool_that_is_not_there(command: str, run: VerifyRun, tool: str | None) -> None:
    error = missing_tool(command, run)
    assert (error.details["tool"] if error else None) == tool
    if error:
        assert error.code is ErrorCode.VERIFY_TOOL_MISSING
        assert "--setup" in error.message


def test_what_the_model_is_told_is_bounded_and_plain() -> None:
    log = b"\x1b[31mred\x1b[0m\r\nprogress 1%\rprogress 100%\n" + b"x" * 50_000 + b"\nlast line\n"
    text = feedback("pytest", ended(2, log), rounds_left=2)
    assert len(text) < FEEDBACK_CHARS + 1500
    assert "exit code 2" in text
    assert "2 tries are left" in text
    assert "red\nprogress 100%\n" in text
    assert "last line" in text
    assert "characters left out" in text
    assert "\x1b" not in text
    assert "last try" in feedback("pytest", ended(1), rounds_left=1)
    assert "ran out of time" in feedback("pytest", ended(1, timed_out=True), rounds_left=1)


def test_output_of_any_length_keeps_its_beginning_and_its_end() -> None:
    keeper = OutputKeeper(head=10, tail=20)
    for number in range(100):
        keeper.add(b"%06d\n" % number)
    data = keeper.data()
    assert data.startswith(b"000000\n000")
    assert data.endswith(b"000098\n000099\n")
    assert b"670 bytes left out" in data
    small = OutputKeeper(head=10, tail=20)
    small.add(b"0123456789abc")
    assert small.data() == b"0123456789abc"


def test_tail_begins_with_a_line() -> None:
    text = "".join(f"line {number}\n" for number in range(2000))
    assert tail(text).startswith("line ")
    assert tail(text).endswith("line 1999\n")
    assert tail("short") == "short"
    assert plain(b"\xff\0ok") == "\ufffdok"
