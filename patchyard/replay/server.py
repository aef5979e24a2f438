"""The replay model's server: routes, and one response after the other."""

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.replay.checks import History, check_history, check_pairs, digest_items
from patchyard.replay.connection import BadRequest, ClientClosed, HttpConnection, HttpRequest
from patchyard.replay.errors import ReplayError, ScriptError
from patchyard.replay.log import RequestEntry, RequestLog, texts_of
from patchyard.replay.player import Names, Performance, perform
from patchyard.replay.reading import ModelCall, body_of, error_body, malformed, read_call
from patchyard.replay.script import ErrorSpec, FirstRequest, PerThreadScript, Played, Script, StepSource, parse_script
from patchyard.replay.violations import Violation, ViolationKind, Violations

KEPT_THREADS = 100_000
"""Threads whose place in the history is remembered; the oldest go first."""
_JSON = {"content-type": "application/json"}
_SSE = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}


@dataclass
class _Thread:
    digest: str
    history: History = field(default_factory=History)
    responses: int = 0
    input_tokens: int = 0


class ReplayServer:
    """Serves on one address until closed. `source` may be a script or any StepSource."""

    def __init__(
        self,
        source: Script | StepSource,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        keep_bodies: int = 256,
        on_violation: Callable[[Violation], None] | None = None,
    ) -> None:
        self._host, self._port = host, port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._threads: dict[str, _Thread] = {}
        self.log = RequestLog(keep_bodies=keep_bodies)
        self.violations = Violations(on_violation)
        self.model = "gpt-5.5"
        self._source = self._take(source)

    async def start(self) -> None:
        """Listen. ReplayError: the address can't be had."""
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self._port, backlog=1024)
        except OSError as problem:
            message = (
                f"the replay model can't listen on {self._host}:{self._port} ({problem.strerror or problem}); "
                "choose another with --port, or 0 for any free one"
            )
            raise ReplayError(ErrorInfo.of(ErrorCode.INVALID_REQUEST, message)) from problem

    @property
    def base_url(self) -> str:
        """What a client takes as its base URL: requests go to <base>/responses."""
        if self._server is None or not self._server.sockets:
            raise ReplayError(ErrorInfo.of(ErrorCode.INTERNAL, "the replay model was not started"))
        port = self._server.sockets[0].getsockname()[1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{port}/v1"

    def unused_steps(self) -> int:
        """Mounted steps that nobody asked for."""
        return self._source.unused()

    def replace(self, source: Script | StepSource) -> None:
        """Play this from now on; log, violations and threads begin anew."""
        self._source = self._take(source)
        self._threads.clear()
        self.log.clear()
        self.violations.clear()

    async def close(self) -> None:
        """Stop listening and drop every connection. Twice is harmless."""
        if self._server is not None:
            self._server.close()
        for task in tuple(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(tuple(self._connections))
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    def _take(self, source: Script | StepSource) -> StepSource:
        if isinstance(source, Script):
            self.model = source.model
            return PerThreadScript(source)
        return source

    # --- connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - asyncio runs the callback in a task
        self._connections.add(task)
        connection = HttpConnection(reader, writer)
        try:
            await self._serve_requests(connection)
        except asyncio.CancelledError:
            # Only `close` cancels; asyncio's stream callback would log it as an error.
            await connection.close(abort=True)
        finally:
            self._connections.discard(task)
            with contextlib.suppress(asyncio.CancelledError):
                await connection.close()

    async def _serve_requests(self, connection: HttpConnection) -> None:
        with contextlib.suppress(ClientClosed):
            while True:
                try:
                    request = await connection.next_request()
                    if request is None:
                        return
                    await self._route(connection, request)
                except BadRequest as problem:
                    error = {"error": {"type": "invalid_request_error", "message": str(problem)}}
                    headers = {**_JSON, "connection": "close"}
                    await connection.respond(problem.status, json.dumps(error).encode(), headers=headers)
                    return

    async def _route(self, connection: HttpConnection, request: HttpRequest) -> None:
        path = request.path.partition("?")[0].rstrip("/")
        match request.method, path.rpartition("/")[2]:
            case "POST", "responses":
                await self._respond(connection, request)
            case "GET", "responses":
                await self._json(connection, 426, error_body("upgrade_required", "this server speaks SSE: POST to this path"))
            case "GET", "models":
                models = [{"id": self.model, "object": "model", "owned_by": "replay"}]
                await self._json(connection, 200, {"object": "list", "data": models})
            case "GET", "violations":
                found = [violation.as_dict() for violation in self.violations.all()]
                await self._json(connection, 200, {"count": self.violations.count, "violations": found})
            case "GET", "requests":
                await self._json(connection, 200, {"count": self.log.count, "requests": [e.summary() for e in self.log.all()]})
            case "GET", "healthz":
                status = {"status": "ok", "requests": self.log.count, "threads": len(self._threads)}
                await self._json(connection, 200, {**status, "violations": self.violations.count})
            case "POST", "script":
                await self._replace_script(connection, request)
            case _:
                message = "unknown address; there are POST /responses, GET /violations /requests /models /healthz, POST /script"
                await self._json(connection, 404, error_body("not_found", message))

    async def _json(self, connection: HttpConnection, status: int, body: Mapping[str, Any]) -> None:
        await connection.respond(status, json.dumps(body).encode(), headers=_JSON)

    async def _replace_script(self, connection: HttpConnection, request: HttpRequest) -> None:
        try:
            script = parse_script(request.body.decode("utf-8", "replace"), source="<request>")
        except ScriptError as problem:
            await self._json(connection, 400, error_body("invalid_script", str(problem)))
            return
        self.replace(script)
        await self._json(connection, 200, {"status": "ok"})

    # --- model requests

    async def _respond(self, connection: HttpConnection, request: HttpRequest) -> None:
        number = self.log.count
        body = body_of(request.body)
        call = read_call(number, request, body)
        thread = self._thread(call.thread)
        played = self._source.next_step(call.thread, lambda: FirstRequest(call.model, texts_of(call.items)))
        entry = RequestEntry(
            number, call.thread, played.number if played else None, call.window, call.kind, request.headers,
            body, call.body_bytes, len(call.items), time.time_ns() // 1_000_000,
        )  # fmt: skip
        self.log.add(entry)
        digests = digest_items(call.items)
        self._check(call, thread, digests, played, body, entry)
        if played is None:
            await self._refuse(connection, call, entry)
        elif played.step.error is not None and played.step.error.status is not None:
            if played.step.delay_ms:
                await connection.unless_closed(asyncio.sleep(played.step.delay_ms / 1000))
            await self._fail(connection, played.step.error, played.step.headers, entry)
        else:
            await self._play(connection, call, thread, played, digests, entry)

    def _thread(self, key: str) -> _Thread:
        thread = self._threads.get(key)
        if thread is None:
            if len(self._threads) >= KEPT_THREADS:
                del self._threads[next(iter(self._threads))]
            thread = self._threads[key] = _Thread(hashlib.blake2b(key.encode(), digest_size=4).hexdigest())
        return thread

    def _check(
        self,
        call: ModelCall,
        thread: _Thread,
        digests: bytes,
        played: Played | None,
        body: dict[str, Any] | None,
        entry: RequestEntry,
    ) -> None:
        def report(kind: ViolationKind, message: str) -> None:
            entry.violations.append(f"{kind}: {message}")
            self.violations.add(Violation(kind, message, call.thread, call.number))

        for problem in malformed(body):
            report(ViolationKind.MALFORMED_REQUEST, problem)
        findings = check_pairs(call.items)
        if call.kind != "compaction":
            findings += check_history(thread.history, call.items, digests, call.window)
        for finding in findings:
            report(finding.kind, finding.message)
        if played is None:
            report(ViolationKind.UNEXPECTED_REQUEST, "the script has no further step for this thread")
            return
        start = thread.history.items if digests.startswith(thread.history.digests) else 0
        fresh = texts_of(call.items[start:]) if played.step.expect.contains else ""
        for text in played.step.expect.contains:
            if text not in fresh:
                report(ViolationKind.EXPECTATION, f"step {played.number} expects {text!r} in the new items; it is not there")

    async def _refuse(self, connection: HttpConnection, call: ModelCall, entry: RequestEntry) -> None:
        entry.status, entry.outcome = 400, "refused"
        message = (
            f"the replay script has no further step for thread {call.thread} (request {call.number}); "
            "add a step, or set repeat_last: true"
        )
        await self._json(connection, 400, error_body("script_exhausted", message))

    async def _fail(self, connection: HttpConnection, error: ErrorSpec, more: Mapping[str, str], entry: RequestEntry) -> None:
        assert error.status is not None  # noqa: S101 - the caller looked
        entry.status, entry.outcome = error.status, "error"
        headers = {**_JSON, **more}
        if error.retry_after is not None:
            headers["retry-after"] = f"{error.retry_after:g}"
        body = error.body if error.body is not None else json.dumps(error_body(error.code, error.message, error.type))
        await connection.respond(error.status, body.encode(), headers=headers)

    async def _play(
        self, connection: HttpConnection, call: ModelCall, thread: _Thread, played: Played, digests: bytes, entry: RequestEntry
    ) -> None:
        tokens = call.body_bytes // 4
        cached = thread.input_tokens if thread.history.window == call.window else 0
        names = Names(thread.digest, thread.responses)
        performance = perform(played.step, names, model=call.model, input_tokens=tokens, cached_tokens=cached)
        thread.responses += 1
        if call.kind != "compaction":
            thread.input_tokens = tokens
            thread.history.record(call.items, digests, call.window)
            thread.history.emitted_calls = []
        entry.outcome = "client_closed"
        headers = {**_SSE, "x-request-id": f"req_{thread.digest}_{call.number}", **played.step.headers}

        def ended() -> None:
            entry.outcome = "completed" if performance.ending == "complete" else "cut"
            if call.kind != "compaction":
                thread.history.emitted_calls = list(performance.emitted_calls)

        stream = _stream(connection, performance, headers, played.step.delay_ms / 1000, entry, ended)
        await connection.unless_closed(stream)
        if performance.ending == "cut":
            raise ClientClosed


async def _stream(
    connection: HttpConnection,
    performance: Performance,
    headers: Mapping[str, str],
    delay_s: float,
    entry: RequestEntry,
    ended: Callable[[], None],
) -> None:
    """Send the frames, those without a delay between them in one write.

    `ended` is called before the last bytes go out: a client that has seen the end finds log and history complete.
    """
    if delay_s:
        await asyncio.sleep(delay_s)
    await connection.start(200, headers)
    waiting: list[bytes] = []
    for frame in performance.frames:
        if frame.delay_s:
            await connection.send(b"".join(waiting))
            waiting.clear()
            await asyncio.sleep(frame.delay_s)
        waiting.append(frame.data)
        entry.events += 1
    if performance.ending != "hang":
        ended()
    await connection.send(b"".join(waiting))
    match performance.ending:
        case "complete":
            await connection.finish()
        case "hang":
            await asyncio.Event().wait()
        case "cut":
            pass
        case _:
            assert_never(performance.ending)
