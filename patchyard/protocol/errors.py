"""Codes of everything that can go wrong, the same in REST answers, events, rollouts and the CLI.

ErrorCode            why something was refused or ended
ErrorInfo            code + a message that says what to do next + retryable
NotSubmittedReason   why turn input was not taken
"""

from enum import StrEnum
from typing import assert_never

from pydantic import Field

from ._model import WireModel


class ErrorCode(StrEnum):
    """Closed set of error codes. Clients may match on them; messages may change."""

    # request
    INVALID_REQUEST = "invalid_request"
    UNAUTHORIZED = "unauthorized"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    QUEUE_FULL = "queue_full"
    QUEUE_UNAVAILABLE = "queue_unavailable"
    CATALOG_UNAVAILABLE = "catalog_unavailable"
    STORE_UNAVAILABLE = "store_unavailable"
    THREAD_CLOSED = "thread_closed"
    INTERNAL = "internal"
    # repository and workspace
    REPOSITORY_NOT_FOUND = "repository_not_found"
    REPOSITORY_NOT_ALLOWED = "repository_not_allowed"
    REVISION_NOT_FOUND = "revision_not_found"
    SETUP_FAILED = "setup_failed"
    # sandbox
    ENGINE_UNAVAILABLE = "engine_unavailable"
    IMAGE_MISSING = "image_missing"
    SANDBOX_REFUSED = "sandbox_refused"
    SANDBOX_LOST = "sandbox_lost"
    DISK_FULL = "disk_full"
    # model
    MODEL_UNAUTHORIZED = "model_unauthorized"
    MODEL_RATE_LIMITED = "model_rate_limited"
    MODEL_OVERLOADED = "model_overloaded"
    MODEL_BAD_REQUEST = "model_bad_request"
    MODEL_UNREACHABLE = "model_unreachable"
    MODEL_STREAM_FAILED = "model_stream_failed"
    MODEL_QUOTA_EXCEEDED = "model_quota_exceeded"
    CONTEXT_WINDOW_EXCEEDED = "context_window_exceeded"
    # turn and task
    BUDGET_EXCEEDED = "budget_exceeded"
    INTERRUPTED = "interrupted"
    VERIFICATION_FAILED = "verification_failed"
    VERIFY_TOOL_MISSING = "verify_tool_missing"
    NO_CHANGE = "no_change"
    HOOK_BLOCKED = "hook_blocked"


def is_retryable(code: ErrorCode) -> bool:
    """Whether the same request may succeed later without a change by the user."""
    match code:
        case (
            ErrorCode.QUEUE_FULL
            | ErrorCode.QUEUE_UNAVAILABLE
            | ErrorCode.CATALOG_UNAVAILABLE
            | ErrorCode.STORE_UNAVAILABLE
            | ErrorCode.INTERNAL
            | ErrorCode.ENGINE_UNAVAILABLE
            | ErrorCode.SANDBOX_LOST
            | ErrorCode.DISK_FULL
            | ErrorCode.MODEL_RATE_LIMITED
            | ErrorCode.MODEL_OVERLOADED
            | ErrorCode.MODEL_UNREACHABLE
            | ErrorCode.MODEL_STREAM_FAILED
        ):
            return True
        case (
            ErrorCode.INVALID_REQUEST
            | ErrorCode.UNAUTHORIZED
            | ErrorCode.NOT_FOUND
            | ErrorCode.CONFLICT
            | ErrorCode.PAYLOAD_TOO_LARGE
            | ErrorCode.THREAD_CLOSED
            | ErrorCode.REPOSITORY_NOT_FOUND
            | ErrorCode.REPOSITORY_NOT_ALLOWED
            | ErrorCode.REVISION_NOT_FOUND
            | ErrorCode.SETUP_FAILED
            | ErrorCode.IMAGE_MISSING
            | ErrorCode.SANDBOX_REFUSED
            | ErrorCode.MODEL_UNAUTHORIZED
            | ErrorCode.MODEL_BAD_REQUEST
            | ErrorCode.MODEL_QUOTA_EXCEEDED
            | ErrorCode.CONTEXT_WINDOW_EXCEEDED
            | ErrorCode.BUDGET_EXCEEDED
            | ErrorCode.INTERRUPTED
            | ErrorCode.VERIFICATION_FAILED
            | ErrorCode.VERIFY_TOOL_MISSING
            | ErrorCode.NO_CHANGE
            | ErrorCode.HOOK_BLOCKED
        ):
            return False
        case _:
            assert_never(code)


class ErrorInfo(WireModel):
    """An error as data."""

    code: ErrorCode
    message: str
    """Says what happened and what to do next."""
    retryable: bool = False
    details: dict[str, str] = Field(default_factory=dict)

    @classmethod
    def of(cls, code: ErrorCode, message: str, **details: str) -> "ErrorInfo":
        """An error whose `retryable` follows from its code."""
        return cls(code=code, message=message, retryable=is_retryable(code), details=details)


class NotSubmittedReason(StrEnum):
    """Why turn input was not taken. Checked in this order: no turn, wrong id, kind, empty, schema."""

    NOT_IDLE = "not_idle"
    NO_ACTIVE_TURN = "no_active_turn"
    EXPECTED_TURN_MISMATCH = "expected_turn_mismatch"
    ACTIVE_TURN_NOT_STEERABLE = "active_turn_not_steerable"
    EMPTY_INPUT = "empty_input"
    OUTPUT_SCHEMA_MISMATCH = "output_schema_mismatch"
