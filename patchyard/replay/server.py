"""The replay model's server: routes, and one response after the other."""

import asyncio
import contextlib
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from websockets.utils import accept_key

from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.replay.connection import BadRequest, ClientClosed, HttpConnection, HttpRequest
from patchyard.replay.conversation import Conversation
from patchyard.replay.errors import ReplayError, ScriptError
from patchyard.replay.log import RequestLog
from patchyard.replay.reading import body_of, error_body, read_call
from patchyard.replay.script import PerThreadScript, Script, StepSource, parse_script
from patchyard.replay.violations import Violation, Violations
from patchyard.replay.wires import ChatWire, SseWire, serve_socket
from patchyard.replay.wires.chat import chat_items, chat_problems
from patchyard.replay.wires.sse import JSON


@dataclass(frozen=True)
class Demands:
    """What a request needs to be let in, as gateways and Azure want it."""

    headers: Mapping[str, str] = field(default_factory=dict)
    """Lower-case names with their values; a miss is answered 401."""
    query: Mapping[str, str] = field(default_factory=dict)
    """Query parameters; a miss is answered 404."""


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
        demands: Demands | None = None,
        upgrade_status: int | None = None,
    ) -> None:
        """`upgrade_status`: answer WebSocket upgrades with it (426: as a server without them)."""
        self._host, self._port = host, port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._demands = demands or Demands()
        self._upgrade_status = upgrade_status
        self.upgrades = 0
        """WebSockets that were asked for."""
        self.log = RequestLog(keep_bodies=keep_bodies)
        self.violations = Violations(on_violation)
        self._conversation = Conversation(self.log, self.violations)
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

    @property
    def prewarms(self) -> int:
        """WebSocket requests that asked for no output: they are not in the log."""
        return self._conversation.prewarms

    def unused_steps(self) -> int:
        """Mounted steps that nobody asked for."""
        return self._source.unused()

    def replace(self, source: Script | StepSource) -> None:
        """Play this from now on; log, violations and threads begin anew."""
        self._source = self._take(source)
        self._conversation.clear()
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
                    headers = {**JSON, "connection": "close"}
                    await connection.respond(problem.status, json.dumps(error).encode(), headers=headers)
                    return

    async def _route(self, connection: HttpConnection, request: HttpRequest) -> None:
        path, _, query = request.path.partition("?")
        name = path.rstrip("/").rpartition("/")[2]
        if name in ("responses", "completions") and (refusal := self._refusal(request, query)) is not None:
            await self._json(connection, *refusal)
            return
        match request.method, name:
            case "POST", "responses":
                await self._respond(connection, request)
            case "POST", "completions":
                await self._chat(connection, request)
            case "GET", "responses":
                await self._upgrade(connection, request)
            case "GET", "models":
                models = [{"id": self.model, "object": "model", "owned_by": "replay"}]
                await self._json(connection, 200, {"object": "list", "data": models})
            case "GET", "violations":
                found = [violation.as_dict() for violation in self.violations.all()]
                await self._json(connection, 200, {"count": self.violations.count, "violations": found})
            case "GET", "requests":
                await self._json(connection, 200, {"count": self.log.count, "requests": [e.summary() for e in self.log.all()]})
            case "GET", "healthz":
                status = {"status": "ok", "requests": self.log.count, "threads": self._conversation.threads}
                await self._json(connection, 200, {**status, "violations": self.violations.count})
            case "POST", "script":
                await self._replace_script(connection, request)
            case _:
                message = "unknown address; there are POST /responses /chat/completions /script, GET /violations /requests /models /healthz"
                await self._json(connection, 404, error_body("not_found", message))

    async def _json(self, connection: HttpConnection, status: int, body: Mapping[str, Any]) -> None:
        await connection.respond(status, json.dumps(body).encode(), headers=JSON)

    async def _replace_script(self, connection: HttpConnection, request: HttpRequest) -> None:
        try:
            script = parse_script(request.body.decode("utf-8", "replace"), source="<request>")
        except ScriptError as problem:
            await self._json(connection, 400, error_body("invalid_script", str(problem)))
            return
        self.replace(script)
        await self._json(connection, 200, {"status": "ok"})

    # --- model requests

    def _refusal(self, request: HttpRequest, query: str) -> tuple[int, dict[str, Any]] | None:
        for name, value in self._demands.headers.items():
            if not hmac.compare_digest(request.headers.get(name, ""), value):
                return 401, error_body("invalid_api_key", f"the header {name} is missing or wrong")
        there = dict(parse_qsl(query))
        for name, value in self._demands.query.items():
            if there.get(name) != value:
                return 404, error_body("resource_not_found", f"the query parameter {name} is missing or wrong")
        return None

    async def _respond(self, connection: HttpConnection, request: HttpRequest) -> None:
        body = body_of(request.body)
        call = read_call(self.log.count, request.headers, body, len(request.body))
        exchange = self._conversation.begin(call, body, request.headers, self._source)
        await SseWire(connection, exchange).answer()

    async def _chat(self, connection: HttpConnection, request: HttpRequest) -> None:
        body = body_of(request.body)
        items = chat_items(body or {})
        call = read_call(self.log.count, request.headers, body, len(request.body), items=items, wire="chat")
        exchange = self._conversation.begin(call, body, request.headers, self._source, problems=chat_problems(body))
        await ChatWire(connection, exchange).answer()

    async def _upgrade(self, connection: HttpConnection, request: HttpRequest) -> None:
        key = request.headers.get("sec-websocket-key")
        if request.headers.get("upgrade", "").lower() != "websocket" or key is None:
            body = error_body("upgrade_required", "POST to this path, or ask for an upgrade to a WebSocket")
            await self._json(connection, 426, body)
            return
        self.upgrades += 1
        if self._upgrade_status is not None:
            await self._json(connection, self._upgrade_status, error_body(None, "there is no WebSocket here"))
            return
        headers = {"upgrade": "websocket", "connection": "Upgrade", "sec-websocket-accept": accept_key(key)}
        await connection.upgrade(headers)
        await serve_socket(
            connection,
            request.headers,
            self._conversation,
            source=lambda: self._source,
            next_number=lambda: self.log.count,
        )
