"""The one place where exceptions become answers: RFC 9457 problem+json with Patchyard's codes.

ApiError                 a refusal with an ErrorInfo; its status follows from the code
  + every exception of the adapters that `problem_of` knows
RequestValidationError   400 `invalid_request`; each field is named by its path
anything else            500 `internal`, logged with the request id, no details shown
"""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from patchyard.protocol.errors import ErrorCode, ErrorInfo

from .failures import KNOWN, known_failure

log = logging.getLogger(__name__)

PROBLEM_TYPE = "application/problem+json"
_MAX_FIELD_ERRORS = 20
"""A body with thousands of mistakes gets an answer of bounded size."""


class ApiError(Exception):
    """A request is refused."""

    def __init__(self, info: ErrorInfo, *, retry_after_s: float | None = None) -> None:
        super().__init__(info.message)
        self.info = info
        self.retry_after_s = retry_after_s


def refuse(code: ErrorCode, message: str, **details: str) -> ApiError:
    """The exception for a refusal; `message` says what happened and what to do."""
    return ApiError(ErrorInfo.of(code, message, **details))


def status_of(code: ErrorCode) -> int:
    """The HTTP status of an error code."""
    match code:
        case (
            ErrorCode.INVALID_REQUEST
            | ErrorCode.REPOSITORY_NOT_FOUND
            | ErrorCode.REVISION_NOT_FOUND
            | ErrorCode.MODEL_BAD_REQUEST
            | ErrorCode.CONTEXT_WINDOW_EXCEEDED
            | ErrorCode.SETUP_FAILED
            | ErrorCode.VERIFICATION_FAILED
            | ErrorCode.VERIFY_TOOL_MISSING
            | ErrorCode.NO_CHANGE
            | ErrorCode.HOOK_BLOCKED
            | ErrorCode.BUDGET_EXCEEDED
            | ErrorCode.INTERRUPTED
        ):
            return 400
        case ErrorCode.UNAUTHORIZED:
            return 401
        case ErrorCode.REPOSITORY_NOT_ALLOWED | ErrorCode.SANDBOX_REFUSED:
            return 403
        case ErrorCode.NOT_FOUND:
            return 404
        case ErrorCode.CONFLICT | ErrorCode.THREAD_CLOSED:
            return 409
        case ErrorCode.PAYLOAD_TOO_LARGE:
            return 413
        case ErrorCode.QUEUE_FULL:
            return 429
        case ErrorCode.INTERNAL:
            return 500
        case (
            ErrorCode.MODEL_UNAUTHORIZED
            | ErrorCode.MODEL_RATE_LIMITED
            | ErrorCode.MODEL_OVERLOADED
            | ErrorCode.MODEL_UNREACHABLE
            | ErrorCode.MODEL_STREAM_FAILED
            | ErrorCode.MODEL_QUOTA_EXCEEDED
        ):
            return 502
        case (
            ErrorCode.QUEUE_UNAVAILABLE
            | ErrorCode.CATALOG_UNAVAILABLE
            | ErrorCode.STORE_UNAVAILABLE
            | ErrorCode.ENGINE_UNAVAILABLE
            | ErrorCode.IMAGE_MISSING
            | ErrorCode.SANDBOX_LOST
        ):
            return 503
        case ErrorCode.DISK_FULL:
            return 507
        case _:
            assert_never(code)


def problem(
    info: ErrorInfo,
    *,
    request_id: str,
    status: int | None = None,
    retry_after_s: float | None = None,
    errors: Sequence[Mapping[str, str]] = (),
) -> JSONResponse:
    """The answer that says no: `{type, title, status, detail, code, retryable, request_id}` and, for bad fields, `errors`."""
    status = status or status_of(info.code)
    body: dict[str, Any] = {
        "type": f"urn:patchyard:error:{info.code}",
        "title": str(info.code).replace("_", " ").capitalize(),
        "status": status,
        "detail": info.message,
        "code": str(info.code),
        "retryable": info.retryable,
        "request_id": request_id,
    }
    if info.details:
        body["details"] = info.details
    if errors:
        body["errors"] = list(errors)
    headers = {"x-request-id": request_id}
    if retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(retry_after_s)))
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(body, status_code=status, headers=headers, media_type=PROBLEM_TYPE)


def request_id_of(request: Request) -> str:
    """The id that the middleware gave this request."""
    return str(request.scope.get("patchyard_request_id", "-"))


def answer_for(request: Request, error: Exception) -> Response:
    """The answer for any exception that left a route."""
    request_id = request_id_of(request)
    if isinstance(error, ApiError):
        return problem(error.info, request_id=request_id, retry_after_s=error.retry_after_s)
    if isinstance(error, RequestValidationError):
        return _validation_problem(error, request_id)
    if isinstance(error, HTTPException):
        return _http_problem(error, request_id)
    failure = known_failure(error)
    if failure is not None:
        if failure.info.retryable:
            log.warning("request %s: %s: %s", request_id, failure.info.code, failure.info.message)
        return problem(failure.info, request_id=request_id, retry_after_s=failure.retry_after_s)
    log.error("request %s failed", request_id, exc_info=error)
    info = ErrorInfo.of(ErrorCode.INTERNAL, f"The server made a mistake. Try again; if it stays, report request {request_id}.")
    return problem(info, request_id=request_id)


def _http_problem(error: HTTPException, request_id: str) -> Response:
    if error.status_code == 404:
        info = ErrorInfo.of(ErrorCode.NOT_FOUND, "There is nothing at this address; /openapi.json lists what there is.")
    elif error.status_code == 405:
        info = ErrorInfo.of(ErrorCode.INVALID_REQUEST, "This address does not take this method. See /openapi.json.")
    else:
        info = ErrorInfo.of(ErrorCode.INVALID_REQUEST, str(error.detail))
    return problem(info, request_id=request_id, status=error.status_code)


def _validation_problem(error: RequestValidationError, request_id: str) -> Response:
    fields = [
        {"field": _path(item["loc"]), "message": str(item["msg"]).removeprefix("Value error, ")}
        for item in error.errors()[:_MAX_FIELD_ERRORS]
    ]
    first = fields[0] if fields else {"field": "body", "message": "invalid"}
    more = f" ({len(error.errors()) - 1} more in `errors`)" if len(error.errors()) > 1 else ""
    info = ErrorInfo.of(ErrorCode.INVALID_REQUEST, f"{first['field']}: {first['message']}{more}.")
    return problem(info, request_id=request_id, errors=fields)


def _path(loc: Sequence[str | int]) -> str:
    """`("body", "spec", "budgets", "tokens")` as `spec.budgets.tokens`."""
    parts = [str(part) for part in loc]
    if len(parts) > 1 and parts[0] in ("body", "query", "path", "header"):
        parts = parts[1:]
    return ".".join(parts)


def install(app: FastAPI) -> None:
    """Let every refusal of the app end here; bugs come by way of the guard around it."""
    app.add_exception_handler(RequestValidationError, _handle)
    app.add_exception_handler(HTTPException, _handle)
    for kind in (ApiError, *KNOWN):
        app.add_exception_handler(kind, _handle)


async def _handle(request: Request, error: Exception) -> Response:
    return answer_for(request, error)
