"""Around every request: an id, and a bound on the body. Plain ASGI, so that streams pass through untouched."""

import re
import secrets

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from patchyard.protocol.errors import ErrorCode, ErrorInfo

from .errors import ApiError, answer_for

MAX_BODY_BYTES = 2 * 1024 * 1024
"""Largest JSON body: an instruction of 200,000 characters fits several times."""
_REQUEST_ID = re.compile(r"^[A-Za-z0-9._-]{1,64}$")


class Guard:
    """Gives each request an id (the client's own `X-Request-ID` when it is harmless) and refuses bodies that are too large."""

    def __init__(self, app: ASGIApp, *, max_upload_bytes: int) -> None:
        self._app = app
        self._max_upload_bytes = max_upload_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        given = request.headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.match(given) else secrets.token_hex(8)
        scope["patchyard_request_id"] = request_id
        started = False

        async def tell(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = message.setdefault("headers", [])
                if not any(name == b"x-request-id" for name, _ in headers):
                    headers.append((b"x-request-id", request_id.encode()))
            await send(message)

        upload = request.method == "POST" and scope["path"] == "/v1/artefacts"
        limit = self._max_upload_bytes if upload else MAX_BODY_BYTES
        try:
            _check_declared(request, limit)
            await self._app(scope, _bounded(receive, limit), tell)
        except Exception as error:
            # The outermost place: a bug becomes an answer and a line in the log.
            if started:
                raise
            await answer_for(request, error)(scope, receive, tell)


def _check_declared(request: Request, limit: int) -> None:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)


def _bounded(receive: Receive, limit: int) -> Receive:
    taken = 0

    async def take() -> Message:
        nonlocal taken
        message = await receive()
        if message["type"] == "http.request":
            taken += len(message.get("body", b""))
            if taken > limit:
                raise _too_large(limit)
        return message

    return take


def _too_large(limit: int) -> ApiError:
    text = f"The body is larger than {limit} bytes. Send files to POST /v1/artefacts; PATCHYARD_MAX_UPLOAD_BYTES is its limit."
    return ApiError(ErrorInfo.of(ErrorCode.PAYLOAD_TOO_LARGE, text, max_bytes=str(limit)))
