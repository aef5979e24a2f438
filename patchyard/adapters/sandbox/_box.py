"""A running box: one stream, many commands."""

import asyncio
import errno
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from patchyard.agent.ports import FileContent, FileOperation, PatchHandler, SandboxError, SandboxExecRequest
from patchyard.protocol.policies import SandboxPolicy

from ._confinement import Confinement, policy_records, protected_names
from ._files import check_apply, decode_read, encode_apply, plan_apply, readable_place
from ._frames import (
    OUTPUT_WINDOW,
    EngineDemux,
    Frame,
    FrameDecoder,
    FromBox,
    ProtocolError,
    ToBox,
    encode,
    environment,
    spawn_payload,
)
from ._patches import PatchRequests
from ._process import BoxProcess, StartFailure, start_error
from .errors import BadCommand, BoxLost, BoxRefused

_log = logging.getLogger(__name__)
_READ = 256 << 10
_LEAVING_S = 10.0
"""Longest wait for processes that were killed: only a disk that hangs keeps them so long."""


class StreamFilter(Protocol):
    """What stands between the socket and boxd's frames."""

    def feed(self, data: bytes) -> bytes:
        """Raw bytes in, frame bytes out."""
        ...


class PlainStream:
    """Nothing: boxd's own pipes."""

    def feed(self, data: bytes) -> bytes:
        """As it is."""
        return data


class Box:
    """The Sandbox of boxd. Made by `Box.open`; every failure is a SandboxError."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        policy: SandboxPolicy,
        silence_s: int,
        stream: StreamFilter,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._policy = policy
        self._silence_s = silence_s
        self._stream = stream
        self._decoder = FrameDecoder()
        self._processes: dict[int, BoxProcess] = {}
        self._next_id = 0
        self._patches = PatchRequests(self._send, self._patch_handler)
        self._hello: asyncio.Future[Confinement] = asyncio.get_running_loop().create_future()
        self._heard = time.monotonic()
        self._ended = asyncio.Event()
        self._on_end: list[Callable[[], None]] = []
        self._tasks = [
            asyncio.create_task(self._receive(), name="box-receive"),
            asyncio.create_task(self._ping(), name="box-ping"),
        ]
        self.confinement: Confinement
        self.unprotected: tuple[str, ...] = ()
        """Protected names of the workspace that are symlinks and therefore have no mount over them."""

    @classmethod
    async def open(
        cls,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        policy: SandboxPolicy,
        silence_s: int,
        stream: StreamFilter | None = None,
        timeout_s: float = 30,
    ) -> "Box":
        """Take over a stream and wait for boxd's hello. BoxLost, BoxRefused."""
        box = cls(reader, writer, policy=policy, silence_s=silence_s, stream=stream or EngineDemux())
        try:
            async with asyncio.timeout(timeout_s):
                box.confinement = await asyncio.shield(box._hello)
        except TimeoutError:
            await box.close()
            raise BoxLost("The sandbox did not start in time.") from None
        except BaseException:
            await box.close()
            raise
        return box

    # --- the port -----------------------------------------------------------------------------------------------------

    async def spawn(self, request: SandboxExecRequest, *, on_patch: PatchHandler | None = None) -> BoxProcess:
        """See Sandbox. The box's own environment (PATH and the like, from its image) lies below the request's."""
        limits = request.limits
        records = [("a", argument) for argument in request.argv]
        records += [("t", "24 80")] if request.tty else []
        records += [("w", str(max(1, int(limits.wall_time_s * 1000))))] if limits.wall_time_s is not None else []
        for name, value in (
            ("cpu", limits.cpu_s),
            ("fsize", limits.file_size_bytes),
            ("as", limits.address_space_bytes),
            ("nproc", limits.processes),
        ):
            records += [("r", f"{name}:{value}")] if value is not None else []
        try:
            records += environment(request.env)
        except ValueError as error:
            raise BadCommand(f"The command can't be started: {error}.") from None
        if not request.argv or not request.argv[0]:
            raise BadCommand("The command is empty.")
        try:
            return await self._start(records, cwd=request.cwd, policy=request.policy, on_patch=on_patch)
        except StartFailure as failure:
            raise start_error(failure, request) from None

    async def read_file(self, path: str, *, policy: SandboxPolicy, limit: int) -> FileContent | None:
        """See Sandbox."""
        placed = readable_place(path, policy)
        answer = await self._builtin("read", (placed.root, placed.path, str(limit)), policy=policy)
        return decode_read(answer, path, limit)

    async def apply_files(self, operations: Sequence[FileOperation], *, policy: SandboxPolicy) -> None:
        """See Sandbox."""
        if not operations:
            return
        planned = plan_apply(operations, policy)
        answer = await self._builtin("apply", planned.roots, policy=policy, stdin=encode_apply(operations, planned))
        check_apply(answer, operations)

    async def close(self) -> None:
        """See Sandbox. Closing the stream ends boxd and with it every process; the container's removal is the engine's."""
        self._end(None)

    # --- more than the port -----------------------------------------------------------------------------------------------

    async def ended(self) -> None:
        """Wait until the box is closed or lost."""
        await self._ended.wait()

    @property
    def is_open(self) -> bool:
        """Whether commands can be started."""
        return not self._ended.is_set()

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call once when the box is closed or lost; at once if it is."""
        if self.is_open:
            self._on_end.append(callback)
        else:
            callback()

    # --- commands -----------------------------------------------------------------------------------------------------------

    async def _start(
        self, records: Sequence[tuple[str, str]], *, cwd: str, policy: SandboxPolicy, on_patch: PatchHandler | None = None
    ) -> BoxProcess:
        """Start it; in a box that is full as soon as commands that were killed are gone. StartFailure."""
        while True:
            leaving = [process for process in self._processes.values() if process.is_leaving]
            try:
                return await self._try_to_start(records, cwd=cwd, policy=policy, on_patch=on_patch)
            except StartFailure as failure:
                if failure.error != errno.EAGAIN or not leaving:
                    raise
                try:
                    async with asyncio.timeout(_LEAVING_S):
                        await leaving[0].gone()
                except TimeoutError:
                    raise failure from None

    async def _try_to_start(
        self, records: Sequence[tuple[str, str]], *, cwd: str, policy: SandboxPolicy, on_patch: PatchHandler | None
    ) -> BoxProcess:
        if not self.is_open:
            raise BoxLost
        confined = policy_records(policy, box_policy=self._policy, landlock_abi=self.confinement.landlock_abi)
        try:
            payload = spawn_payload([*records, ("c", cwd), ("k", str(OUTPUT_WINDOW)), *confined])
        except ValueError as error:
            raise BadCommand(f"The command can't be started: {error}.") from None
        self._next_id = self._next_id % 0xFFFF_FFFF + 1
        process = BoxProcess(self._next_id, self._send, self._drain, on_patch=on_patch)
        self._processes[self._next_id] = process
        self._send(ToBox.SPAWN, self._next_id, payload)
        try:
            await process.begun()
        except asyncio.CancelledError:
            process.signal(9)
            raise
        return process

    async def _builtin(self, name: str, argv: Sequence[str], *, policy: SandboxPolicy, stdin: Iterable[bytes] = ()) -> bytes:
        records = [("b", name), *(("a", argument) for argument in argv), *(("p", name) for name in protected_names(policy))]
        try:
            process = await self._start(records, cwd="/", policy=policy)
        except StartFailure as failure:
            raise BoxRefused(
                f"A file operation could not be started ({errno.errorcode.get(failure.error, failure.error)})."
            ) from None
        try:
            return await _converse(process, stdin)
        except asyncio.CancelledError:
            process.signal(9)
            raise

    def _patch_handler(self, command: int) -> PatchHandler | None:
        process = self._processes.get(command)
        return process.on_patch if process else None

    # --- the stream ---------------------------------------------------------------------------------------------------------

    def _send(self, kind: ToBox, ident: int, payload: bytes) -> None:
        if self.is_open:
            self._writer.write(encode(kind, ident, payload))

    async def _drain(self) -> None:
        try:
            await self._writer.drain()
        except OSError:
            pass  # the receiving side notices and tells everybody

    async def _receive(self) -> None:
        error: SandboxError = BoxLost()
        try:
            while data := await self._reader.read(_READ):
                self._heard = time.monotonic()
                for frame in self._decoder.feed(self._stream.feed(data)):
                    self._dispatch(frame)
        except OSError as problem:
            _log.debug("stream of a box broke: %s", problem)
        except ProtocolError as problem:
            _log.warning("stream of a box broke: %s", problem)
            error = BoxRefused("The image's first process does not speak boxd's protocol: build the image again.")
        except SandboxError as problem:
            error = problem
        self._end(error)

    def _dispatch(self, frame: Frame) -> None:
        if frame.type is FromBox.HELLO and not self._hello.done():
            self._hello.set_result(Confinement.from_hello(frame.payload))
        if frame.type is FromBox.APPLY:
            self._patches.on_frame(frame)
            return
        process = self._processes.get(frame.id)
        if process and process.on_frame(frame):
            del self._processes[frame.id]

    async def _ping(self) -> None:
        """The box's sign that we live, and ours that it does."""
        while True:
            await asyncio.sleep(self._silence_s / 4)
            if time.monotonic() - self._heard > self._silence_s:
                self._end(BoxLost("The sandbox does not answer any more; its engine may be frozen."))
                return
            self._send(ToBox.PING, 0, b"")

    def _end(self, error: SandboxError | None) -> None:
        if self._ended.is_set():
            return
        self._ended.set()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._writer.close()
        self._patches.close()
        for process in self._processes.values():
            process.on_lost()
        self._processes.clear()
        if not self._hello.done():
            self._hello.set_exception(error or BoxLost())
            self._hello.exception()  # seen: nobody may be waiting
        for callback in self._on_end:
            callback()


async def _converse(process: BoxProcess, stdin: Iterable[bytes]) -> bytes:
    """Write all, read all. A builtin that refuses half-way closes its stdin: its answer tells why."""
    answer = bytearray()

    async def feed() -> None:
        try:
            for part in stdin:
                await process.write(part)
            await process.write(b"", eof=True)
        except BadCommand:
            pass

    feeding = asyncio.create_task(feed())
    try:
        while chunk := await process.read():
            answer += chunk
        await process.wait()
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
    return bytes(answer)
