"""The check that makes a patch verified: base + patch + overlay in a fresh box without network, exit code 0."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from patchyard.adapters.workspace import WORKSPACE
from patchyard.agent.ports import ExecLimits, ExitStatus, Sandbox, SandboxExecRequest
from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.protocol.policies import DangerFullAccess

LOG_HEAD_BYTES = 256 * 1024
LOG_TAIL_BYTES = 4 * 1024 * 1024
"""What is kept of a verify command's output: its beginning and its end."""
TAIL_CHARS = 4000
"""Of the output in the event."""
FEEDBACK_CHARS = 12_000
"""Of the output that is shown to the model."""
_ENV = {  # the search path is the image's own
    "HOME": "/tmp",  # noqa: S108 - inside the box
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "PYTHONDONTWRITEBYTECODE": "1",
    "CI": "1",
}
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_NO_MODULE = re.compile(r"No module named '?(?P<name>[A-Za-z_][\w.]*)'?")


class OutputKeeper:
    """Keeps the beginning and the end of an output of any length."""

    def __init__(self, head: int = LOG_HEAD_BYTES, tail: int = LOG_TAIL_BYTES) -> None:
        self._head_limit = head
        self._tail_limit = tail
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, chunk: bytes) -> None:
        """The next piece."""
        room = self._head_limit - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:] if room > 0 else chunk
        if len(self._tail) > 2 * self._tail_limit:
            self._trim()

    def data(self) -> bytes:
        """What was kept, with a line that counts what was not."""
        self._trim()
        gap = f"\n[… {self._dropped:,} bytes left out …]\n".encode() if self._dropped else b""
        return bytes(self._head) + gap + bytes(self._tail)

    def _trim(self) -> None:
        over = len(self._tail) - self._tail_limit
        if over > 0:
            del self._tail[:over]
            self._dropped += over


@dataclass(frozen=True)
class VerifyRun:
    """How a verify command ended."""

    status: ExitStatus
    log: bytes
    duration_ms: int

    @property
    def passed(self) -> bool:
        """Exit code 0 within its time."""
        return self.status.code == 0 and not self.status.timed_out

    @property
    def exit_code(self) -> int | None:
        """The exit code; None when it ran out of time."""
        return None if self.status.timed_out else self.status.code

    def text(self) -> str:
        """The log as text without control sequences."""
        return plain(self.log)


async def run_verify(sandbox: Sandbox, command: str, *, timeout_s: float, show: Callable[[str], None]) -> VerifyRun:
    """Run the command; `show` gets its output as it comes. SandboxError when the box is lost."""
    began = time.monotonic()
    request = SandboxExecRequest(
        argv=("/bin/bash", "-c", command),
        cwd=WORKSPACE,
        env=_ENV,
        policy=DangerFullAccess(),
        limits=ExecLimits(wall_time_s=timeout_s),
    )
    process = await sandbox.spawn(request)
    keeper = OutputKeeper()
    try:
        await process.write(b"", eof=True)
        while chunk := await process.read():
            keeper.add(chunk)
            show(chunk.decode("utf-8", "replace"))
        status = await process.wait()
    except BaseException:
        await process.kill()
        raise
    return VerifyRun(status, keeper.data(), int((time.monotonic() - began) * 1000))


def missing_tool(command: str, run: VerifyRun) -> ErrorInfo | None:
    """An error when the command itself could not start, which no patch can change; None otherwise."""
    text = run.text()
    name: str | None = None
    if run.status.code == 127:
        found = re.search(r"(?:line \d+: )?(?P<name>[^\s:]+): (?:command )?not found", text)
        name = found["name"] if found else command.split()[0]
    elif run.status.code == 1 and (module := _NO_MODULE.search(text[-500:])) is not None:
        asked = re.search(r"-m\s+(?P<name>[\w.]+)", command)
        if asked is not None and asked["name"].split(".")[0] == module["name"].split(".")[0]:
            name = module["name"]
    if name is None:
        return None
    message = (
        f"The verify command needs {name}, which is not in the box. Install it in the set-up phase (`--setup`), "
        "or use an image that has it."
    )
    return ErrorInfo.of(ErrorCode.VERIFY_TOOL_MISSING, message, tool=name)


def feedback(command: str, run: VerifyRun, *, rounds_left: int) -> str:
    """What the model is told about a run that failed."""
    how = "ran out of time" if run.status.timed_out else f"ended with exit code {run.status.code}"
    text = run.text()
    if len(text) > FEEDBACK_CHARS:
        half = FEEDBACK_CHARS // 2
        text = f"{text[:half]}\n[… {len(text) - FEEDBACK_CHARS:,} characters left out …]\n{text[-half:]}"
    last = "This is the last try." if rounds_left == 1 else f"{rounds_left} tries are left."
    return (
        "Your changes were laid over a fresh copy of the base commit and checked there; the check failed.\n"
        f"Command: {command}\nIt {how}. {last}\n\nOutput:\n{text.strip() or '(none)'}\n\n"
        "Find out why, correct the work tree, and finish again. Files that .gitignore excludes are not part of your changes, "
        "and the check may contain tests that you cannot see."
    )


def plain(data: bytes) -> str:
    """Bytes of a terminal as text: no control sequences, no NUL, overwritten lines resolved."""
    text = _ANSI.sub("", data.decode("utf-8", "replace")).replace("\r\n", "\n").replace("\0", "")
    return "\n".join(line.rsplit("\r", 1)[-1] for line in text.split("\n"))


def tail(text: str) -> str:
    """The end of a text, from a line's beginning."""
    if len(text) <= TAIL_CHARS:
        return text
    cut = text[-TAIL_CHARS:]
    return cut[cut.find("\n") + 1 :]
