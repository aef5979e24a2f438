"""Every way in which a model request fails, as an error class with a remedy: one place, so that none is forgotten."""

import email.utils
import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from patchyard.adapters.model.config import ProviderConfig
from patchyard.adapters.model.errors import ClassifiedError
from patchyard.protocol.errors import ErrorCode, ErrorInfo, is_retryable

SHOWN_CHARS = 600
"""Of a server's own words; HTML pages of proxies are long."""

_QUOTA = frozenset({"insufficient_quota", "usage_limit_reached", "usage_not_included", "billing_hard_limit_reached"})
_CONTEXT = frozenset({"context_length_exceeded", "context_window_exceeded"})
_RATE = frozenset({"rate_limit_exceeded", "slow_down", "rate_limit_error"})
_OVERLOADED = frozenset({"server_is_overloaded", "overloaded_error", "model_overloaded"})
_REFUSED = frozenset(
    {"invalid_prompt", "cyber_policy", "invalid_request_error", "content_policy_violation", "invalid_image", "model_not_found"}
)
_RETRIED_STATUS = frozenset({408, 409, 425})
"""Client errors that mean "not now": sent again like a 5xx."""

LATEST = 4_102_444_800.0
"""The year 2100, in seconds since the epoch: a limit that ends later is a mistake of the server."""
LONGEST_DELAY_S = 24 * 3600.0
"""A server that asks for a longer pause is asked once a day."""

_DELAY = re.compile(r"try again in\s*(\d+(?:\.\d+)?)\s*(ms|milliseconds?|s|seconds?|m|minutes?)\b", re.IGNORECASE)


@dataclass(frozen=True)
class ServerError:
    """An error object as providers send it, in an HTTP body or an event."""

    code: str | None = None
    kind: str | None = None
    message: str = ""
    resets_at: float | None = None
    """Seconds since the epoch at which a usage limit ends."""

    def names(self) -> frozenset[str]:
        """Both names under which its class may be told."""
        return frozenset(name for name in (self.code, self.kind) if name)


def read_error(value: Any) -> ServerError:
    """The error in a decoded body or event: `{error: {...}}`, the object itself, or a text."""
    if isinstance(value, Mapping) and isinstance(value.get("error"), Mapping | str):
        value = value["error"]
    if isinstance(value, str):
        return ServerError(message=value)
    if not isinstance(value, Mapping):
        return ServerError()
    resets, left = _number(value.get("resets_at")), _number(value.get("resets_in_seconds"))
    if resets is None and left is not None:
        resets = time.time() + left
    return ServerError(
        code=_text(value.get("code")),
        kind=_text(value.get("type")),
        message=_text(value.get("message") or value.get("detail")) or "",
        resets_at=resets if resets is not None and 0 <= resets < LATEST else None,
    )


def _number(value: Any) -> float | None:
    """A finite number; servers also send NaN, and whole numbers that no float can hold."""
    try:
        found = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def _text(value: Any) -> str | None:
    return None if value is None or value == "" else str(value)


class Classifier:
    """Errors of one provider, free of its secrets."""

    def __init__(self, config: ProviderConfig) -> None:
        self._config = config

    def status(self, status: int, headers: Mapping[str, str], body: bytes, *, model: str) -> ClassifiedError:
        """An HTTP answer that is no stream. `headers` has lower-case names."""
        error = _read_body(body)
        delay = retry_after(headers, error.message)
        said = self._quote(error.message or body.decode("utf-8", "replace"))
        details = {"http_status": str(status), "provider": self._config.name}
        if request_id := headers.get("x-request-id"):
            details["provider_request_id"] = self._config.redact(request_id)
        # A body's `invalid_request_error` stands beside 400, 401, 404 and 429 alike, so there the status decides.
        return self._named(error, said, delay, details) or self._by_status(status, said, delay, details, model, headers)

    def _by_status(
        self, status: int, said: str, delay: float | None, details: dict[str, str], model: str, headers: Mapping[str, str]
    ) -> ClassifiedError:
        name = self._config.name
        if status in (401, 403):
            message = (
                f"{name} refused the credentials (HTTP {status}){said}. Check {self._config.setting('api_key')}, and that the key "
                f"may use model {model} at {self._config.base_url}"
            )
            return self._error(ErrorCode.MODEL_UNAUTHORIZED, message, details)
        if status == 404:
            message = (
                f"{self._config.request_url} does not exist, or there is no model {model} (HTTP 404){said}. "
                f"Check {self._config.setting('base_url')} and the model's name"
            )
            return self._error(ErrorCode.MODEL_BAD_REQUEST, message, details)
        if status == 402:
            message = f"{name} wants to be paid (HTTP 402){said}. Add credit there, or use another key"
            return self._error(ErrorCode.MODEL_QUOTA_EXCEEDED, message, details)
        if status == 429:
            message = f"{name} limits the rate of requests (HTTP 429){said}. Wait, or ask the provider for a higher limit"
            return self._error(ErrorCode.MODEL_RATE_LIMITED, message, details, delay=delay, again=True)
        if status >= 500 or status in _RETRIED_STATUS:
            message = f"{name} can't serve requests at the moment (HTTP {status}){said}. Try again later, or use another model"
            return self._error(ErrorCode.MODEL_OVERLOADED, message, details, delay=delay, again=True)
        if 300 <= status < 400:
            target = self._config.redact(headers.get("location", "elsewhere"))
            message = (
                f"{self._config.request_url} redirects to {target}; set {self._config.setting('base_url')} to the final address"
            )
            return self._error(ErrorCode.MODEL_BAD_REQUEST, message, details)
        message = f"{name} refused the request (HTTP {status}){said}. The same request will be refused again; see what it names"
        return self._error(ErrorCode.MODEL_BAD_REQUEST, message, details)

    def not_a_stream(self, content_type: str, body: bytes) -> ClassifiedError:
        """200, but no event stream: a web page, or JSON."""
        error = _read_body(body)
        details = {"provider": self._config.name, "content_type": content_type[:100]}
        if error.names() and (known := self._named(error, self._quote(error.message), None, details)) is not None:
            return known
        said = self._quote(error.message or body.decode("utf-8", "replace"))
        message = (
            f"{self._config.request_url} answered with {content_type or 'no content type'}, not with an event stream{said}. "
            f"Check {self._config.setting('base_url')}: it must be a server with the API that `wire_api` names (Responses by default)"
        )
        return self._error(ErrorCode.MODEL_BAD_REQUEST, message, details)

    def transport(self, problem: Exception, *, began: bool) -> ClassifiedError:
        """A broken or impossible connection; `began`: a response was already on its way."""
        reason = self._config.redact(str(problem)) or type(problem).__name__
        details = {"provider": self._config.name, "cause": type(problem).__name__}
        if isinstance(problem, httpx.ReadTimeout):
            message = (
                f"{self._config.name} sent nothing for {self._config.idle_timeout_s:g} s (idle timeout). "
                f"Trying again may help; a model that thinks longer needs a higher {self._config.setting('idle_timeout_s')}"
            )
            return self._error(ErrorCode.MODEL_STREAM_FAILED, message, details)
        if began:
            message = f"the connection to {self._config.name} broke inside the response ({reason}). Trying again may help"
            return self._error(ErrorCode.MODEL_STREAM_FAILED, message, details)
        remedy = f"Check {self._config.setting('base_url')}, the network and the proxy"
        if isinstance(problem, httpx.UnsupportedProtocol | httpx.LocalProtocolError):
            return self._error(ErrorCode.MODEL_BAD_REQUEST, f"the request can't be sent: {reason}. {remedy}", details)
        message = f"{self._config.base_url} can't be reached ({reason}). {remedy}"
        return self._error(ErrorCode.MODEL_UNREACHABLE, self._config.redact(message), details, again=True)

    def too_large(self, size: int) -> ClassifiedError:
        """The request is over our own limit."""
        message = (
            f"the request has {size} bytes, the limit for {self._config.name} is {self._config.max_request_bytes}. "
            "Compact the conversation, or raise max_request_bytes of the provider"
        )
        return self._error(ErrorCode.MODEL_BAD_REQUEST, message, {"provider": self._config.name, "bytes": str(size)})

    def too_much_received(self) -> ClassifiedError:
        """The response is over our own limit."""
        limit = self._config.max_response_bytes
        return self.stream_broken(f"the response has more than {limit} bytes (max_response_bytes of the provider)")

    def unusable(self, problem: Exception) -> ClassifiedError:
        """The configuration names a CA file that can't be used."""
        reason = self._config.redact(str(problem))
        message = (
            f"the CA file {self._config.ca_file} of provider {self._config.name} can't be used ({reason}). Correct its path"
        )
        return self._error(ErrorCode.MODEL_BAD_REQUEST, message, {"provider": self._config.name})

    def stream_ended(self) -> ClassifiedError:
        """The stream was over before its last event."""
        message = f"{self._config.name} closed the stream before the response was complete. Trying again may help"
        return self._error(ErrorCode.MODEL_STREAM_FAILED, message, {"provider": self._config.name})

    def stream_broken(self, reason: str) -> ClassifiedError:
        """The stream holds something that can't be used."""
        message = f"the stream of {self._config.name} can't be read: {self._config.redact(reason)}. Trying again may help"
        return self._error(ErrorCode.MODEL_STREAM_FAILED, message, {"provider": self._config.name})

    def failed(self, error: ServerError) -> ClassifiedError:
        """`response.failed` or `error` inside a stream."""
        details = {"provider": self._config.name}
        if error.code:
            details["provider_code"] = error.code
        said = self._quote(error.message)
        delay = _delay_in(error.message)
        known = self._named(error, said, delay, details)
        if known is not None:
            # The response had begun: what was seen of it is the stream layer's business.
            known.request_retry = False
            return known
        if error.names() & _REFUSED:
            message = (
                f"{self._config.name} refused the request{said}. The same request will be refused again; see what it names"
            )
            return self._error(ErrorCode.MODEL_BAD_REQUEST, message, details)
        message = f"{self._config.name} reported an error in the response{said}. Trying again may help"
        return self._error(ErrorCode.MODEL_STREAM_FAILED, message, details, delay=delay)

    def incomplete(self, reason: str) -> ClassifiedError:
        """`response.incomplete`."""
        message = (
            f"{self._config.name} sent an incomplete response, reason: {self._config.redact(reason)}. Trying again may help"
        )
        return self._error(ErrorCode.MODEL_STREAM_FAILED, message, {"provider": self._config.name, "reason": reason[:100]})

    def _named(self, error: ServerError, said: str, delay: float | None, details: dict[str, str]) -> ClassifiedError | None:
        """Classes that the provider itself names, whatever way they come. None: it names none that is known."""
        names, provider = error.names(), self._config.name
        if error.code:
            details["provider_code"] = error.code
        if names & _CONTEXT:
            message = f"the conversation is too long for the model's context window{said}. Compact it, or use a larger model"
            return self._error(ErrorCode.CONTEXT_WINDOW_EXCEEDED, message, details)
        if names & _QUOTA:
            ends = f" until {_utc(error.resets_at)}" if error.resets_at else ""
            message = f"the quota at {provider} is used up{ends}{said}. Raise the limit or add credit there, or use another key"
            wait = max(0.0, error.resets_at - time.time()) if error.resets_at else None
            return self._error(ErrorCode.MODEL_QUOTA_EXCEEDED, message, details, delay=wait)
        if names & _OVERLOADED:
            message = f"the model is at capacity at {provider}{said}. Use another model (PATCHYARD_MODEL), or try later"
            return self._error(ErrorCode.MODEL_OVERLOADED, message, details, delay=delay, again=True, final=True)
        if names & _RATE:
            message = f"{provider} limits the rate of requests{said}. Wait, or ask the provider for a higher limit"
            return self._error(ErrorCode.MODEL_RATE_LIMITED, message, details, delay=delay, again=True)
        return None

    def _error(
        self,
        code: ErrorCode,
        message: str,
        details: dict[str, str],
        *,
        delay: float | None = None,
        again: bool = False,
        final: bool = False,
    ) -> ClassifiedError:
        """`final`: not retryable although its code is: for a model at capacity another model is the remedy."""
        info = ErrorInfo(code=code, message=message, retryable=is_retryable(code) and not final, details=details)
        return ClassifiedError(info, retry_after_s=delay, request_retry=again)

    def _quote(self, said: str) -> str:
        """The provider's words in one line, as `: "…"`; nothing for nothing."""
        text = " ".join(self._config.redact(said).split())
        if not text:
            return ""
        return f': "{text}"' if len(text) <= SHOWN_CHARS else f': "{text[:SHOWN_CHARS]}…"'


def _read_body(body: bytes) -> ServerError:
    try:
        return read_error(json.loads(body))
    except (ValueError, RecursionError):
        return ServerError()


def retry_after(headers: Mapping[str, str], message: str = "") -> float | None:
    """Seconds that the server asks to wait: `retry-after-ms`, `retry-after` (seconds or date), or its message."""
    millis, value = headers.get("retry-after-ms"), headers.get("retry-after")
    try:
        if millis is not None:
            return _delay(float(millis) / 1000)
        if value is not None:
            return _delay(float(value))
    except ValueError:
        until = _until_date(value or "")
        return until if until is not None else _delay_in(message)
    return _delay_in(message)


def _until_date(value: str) -> float | None:
    try:
        parsed = email.utils.parsedate_tz(value)
        return None if parsed is None else _delay(email.utils.mktime_tz(parsed) - time.time())
    except (ValueError, OverflowError):  # a date that no calendar has
        return None


def _delay(seconds: float) -> float | None:
    return None if math.isnan(seconds) else min(max(0.0, seconds), LONGEST_DELAY_S)


def _delay_in(message: str) -> float | None:
    found = _DELAY.search(message)
    if found is None:
        return None
    unit = found[2].lower()
    factor = 0.001 if unit.startswith(("ms", "milli")) else 60.0 if unit.startswith("m") else 1.0
    return _delay(float(found[1]) * factor)


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
