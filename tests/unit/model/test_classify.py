"""Each failure has a class, says what to do and never shows the key."""

import json
from typing import Any

import httpx
import pytest

from patchyard.adapters.model.classify import Classifier, read_error, retry_after
from patchyard.adapters.model.config import ProviderConfig
from patchyard.protocol.errors import ErrorCode

KEY = "sk-very-secret-key"
CONFIG = ProviderConfig(name="acme", base_url="http://127.0.0.1:1/v1", api_key=KEY)
CLASSIFIER = Classifier(CONFIG)


def error(code: str | None = None, kind: str | None = None, message: str = "", **more: Any) -> bytes:
    return json.dumps({"error": {"code": code, "type": kind, "message": message, **more}}).encode()


@pytest.mark.parametrize(
    ("status", "body", "code", "again", "retryable", "says"),
    [
        (500, b"oops", ErrorCode.MODEL_OVERLOADED, True, True, "HTTP 500"),
        (503, error("server_is_overloaded"), ErrorCode.MODEL_OVERLOADED, True, False, "PATCHYARD_MODEL"),
        (529, error(None, "overloaded_error"), ErrorCode.MODEL_OVERLOADED, True, False, "at capacity"),
        (408, b"", ErrorCode.MODEL_OVERLOADED, True, True, "HTTP 408"),
        (429, b"", ErrorCode.MODEL_RATE_LIMITED, True, True, "HTTP 429"),
        (429, error("rate_limit_exceeded", "tokens"), ErrorCode.MODEL_RATE_LIMITED, True, True, "Wait"),
        (429, error("insufficient_quota", "insufficient_quota"), ErrorCode.MODEL_QUOTA_EXCEEDED, False, False, "quota"),
        (429, error(None, "usage_limit_reached", resets_at=4e9), ErrorCode.MODEL_QUOTA_EXCEEDED, False, False, "2096-10-02"),
        (402, b"", ErrorCode.MODEL_QUOTA_EXCEEDED, False, False, "paid"),
        (
            401,
            error("invalid_api_key", "invalid_request_error"),
            ErrorCode.MODEL_UNAUTHORIZED,
            False,
            False,
            "PATCHYARD_MODEL_API_KEY",
        ),
        (403, b"", ErrorCode.MODEL_UNAUTHORIZED, False, False, "PATCHYARD_MODEL_API_KEY"),
        (404, b"", ErrorCode.MODEL_BAD_REQUEST, False, False, "PATCHYARD_MODEL_BASE_URL"),
        (404, error("model_not_found"), ErrorCode.MODEL_BAD_REQUEST, False, False, "PATCHYARD_MODEL"),
        (400, error(None, "invalid_request_error", "bad tool"), ErrorCode.MODEL_BAD_REQUEST, False, False, "bad tool"),
        (400, error("context_length_exceeded"), ErrorCode.CONTEXT_WINDOW_EXCEEDED, False, False, "Compact"),
        (301, b"", ErrorCode.MODEL_BAD_REQUEST, False, False, "final address"),
        (418, b"", ErrorCode.MODEL_BAD_REQUEST, False, False, "HTTP 418"),
    ],
)
def test_http_answers(status: int, body: bytes, code: ErrorCode, again: bool, retryable: bool, says: str) -> None:
    found = CLASSIFIER.status(status, {}, body, model="gpt-5.5")
    assert (found.code, found.request_retry, found.retryable) == (code, again, retryable)
    assert says in found.info.message


@pytest.mark.parametrize(
    ("code", "expected", "retryable"),
    [
        ("context_length_exceeded", ErrorCode.CONTEXT_WINDOW_EXCEEDED, False),
        ("insufficient_quota", ErrorCode.MODEL_QUOTA_EXCEEDED, False),
        ("usage_not_included", ErrorCode.MODEL_QUOTA_EXCEEDED, False),
        ("rate_limit_exceeded", ErrorCode.MODEL_RATE_LIMITED, True),
        ("slow_down", ErrorCode.MODEL_RATE_LIMITED, True),
        ("server_is_overloaded", ErrorCode.MODEL_OVERLOADED, False),
        ("invalid_prompt", ErrorCode.MODEL_BAD_REQUEST, False),
        ("cyber_policy", ErrorCode.MODEL_BAD_REQUEST, False),
        ("server_error", ErrorCode.MODEL_STREAM_FAILED, True),
        ("something_new", ErrorCode.MODEL_STREAM_FAILED, True),
        (None, ErrorCode.MODEL_STREAM_FAILED, True),
    ],
)
def test_failures_inside_a_stream(code: str | None, expected: ErrorCode, retryable: bool) -> None:
    found = CLASSIFIER.failed(read_error({"code": code, "message": "no"}))
    assert (found.code, found.retryable) == (expected, retryable)


def test_connections() -> None:
    unreachable = CLASSIFIER.transport(httpx.ConnectError("refused"), began=False)
    assert (unreachable.code, unreachable.request_retry) == (ErrorCode.MODEL_UNREACHABLE, True)
    assert "PATCHYARD_MODEL_BASE_URL" in unreachable.info.message
    broken = CLASSIFIER.transport(httpx.ReadError("reset"), began=True)
    assert (broken.code, broken.request_retry, broken.retryable) == (ErrorCode.MODEL_STREAM_FAILED, False, True)
    silent = CLASSIFIER.transport(httpx.ReadTimeout(""), began=True)
    assert "PATCHYARD_MODEL_IDLE_TIMEOUT_S" in silent.info.message


def test_the_key_is_shown_nowhere() -> None:
    shown = [
        CLASSIFIER.status(401, {"x-request-id": KEY}, error("x", "y", f"bad key {KEY}"), model="m"),
        CLASSIFIER.status(500, {}, f"<html>{KEY}</html>".encode(), model="m"),
        CLASSIFIER.status(302, {"location": f"http://x/{KEY}"}, b"", model="m"),
        CLASSIFIER.transport(httpx.ConnectError(KEY), began=False),
        CLASSIFIER.failed(read_error({"message": KEY})),
        CLASSIFIER.stream_broken(KEY),
        CLASSIFIER.not_a_stream("text/html", KEY.encode()),
    ]
    for found in shown:
        assert KEY not in found.info.model_dump_json()
        assert "[redacted]" in found.info.model_dump_json()
    assert KEY not in repr(CONFIG)


@pytest.mark.parametrize(
    ("headers", "message", "seconds"),
    [
        ({"retry-after": "2"}, "", 2.0),
        ({"retry-after-ms": "250", "retry-after": "9"}, "", 0.25),
        ({}, "Please try again in 1.5s.", 1.5),
        ({}, "try again in 20ms", 0.02),
        ({}, "Try again in 2 minutes", 120.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, "", 0.0),
        ({"retry-after": "soon"}, "", None),
        ({}, "later", None),
        ({"retry-after": "inf"}, "", 86_400.0),
        ({"retry-after": "1e300"}, "", 86_400.0),
        ({"retry-after": "nan"}, "", None),
        ({"retry-after": "-5"}, "", 0.0),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, "", 86_400.0),
        ({"retry-after": "Fri, 99 Dec 99999999999 23:59:59 GMT"}, "", None),
        ({}, f"try again in {'9' * 400} s", 86_400.0),
    ],
)
def test_the_pause_that_a_server_asks_for(headers: dict[str, str], message: str, seconds: float | None) -> None:
    assert retry_after(headers, message) == seconds


@pytest.mark.parametrize(
    "when",
    [
        '"resets_at": 1e300',
        '"resets_at": NaN',
        f'"resets_at": 1{"0" * 400}',
        '"resets_at": true',
        '"resets_in_seconds": Infinity',
        '"resets_in_seconds": 1e300',
    ],
)
def test_a_quota_that_ends_at_no_possible_time_is_a_quota_all_the_same(when: str) -> None:
    body = f'{{"error": {{"code": "usage_limit_reached", "message": "later", {when}}}}}'
    found = CLASSIFIER.status(429, {}, body.encode(), model="m")
    assert found.code is ErrorCode.MODEL_QUOTA_EXCEEDED
    assert found.retry_after_s is None
    assert " until " not in found.info.message


def test_a_body_that_is_nested_too_deeply_is_quoted_as_text() -> None:
    assert CLASSIFIER.status(400, {}, b"[" * 200_000, model="m").code is ErrorCode.MODEL_BAD_REQUEST
