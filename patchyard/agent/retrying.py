"""The pause between two tries of a model request."""

import random

from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.protocol.events import StreamError

from .errors import ContextOverflow, ParkTurn, TurnError
from .ports import ModelError
from .thread import Thread

_FIRST_DELAY_S = 0.2
_LONGEST_DELAY_S = 30.0
_STILL_LIMITED_S = 60.0
"""A provider whose rate limit outlasts all tries is asked again after so long; meanwhile the turn holds nothing."""
_JITTER = 0.1
"""Share by which a delay varies, so that many turns do not come back at once."""


async def pause_before_retry(thread: Thread, error: ModelError, attempt: int) -> None:
    """Tell of the failed attempt and wait. TurnError when there is no other, ParkTurn when the wait is too long for a slot."""
    config, clock = thread.config, thread.ports.clock
    if error.code is ErrorCode.CONTEXT_WINDOW_EXCEEDED:
        raise ContextOverflow(error.info) from error
    used_up = attempt > config.stream_retries
    limited = error.code is ErrorCode.MODEL_RATE_LIMITED
    if not error.retryable or (used_up and not limited):
        raise TurnError(error.info) from error
    delay = _backoff(attempt) if error.retry_after_s is None else error.retry_after_s
    if used_up:
        delay = max(delay, _STILL_LIMITED_S)
    how = "the turn waits and tries again" if used_up else f"trying again ({attempt} of {config.stream_retries})"
    event = StreamError(
        message=f"The model request failed, {how}: {error.info.message}",
        attempt=attempt,
        max_attempts=config.stream_retries,
        retry_in_ms=round(delay * 1000),
        error=error.info,
    )
    await thread.journal.commit(event)
    if used_up or delay > config.hold_time_s:
        raise ParkTurn("retry_time", clock.now_ms() + round(delay * 1000))
    await clock.sleep(delay)


def too_long() -> TurnError:
    """The conversation does not fit, and nothing more can be left out."""
    message = (
        "The conversation no longer fits into the model's context window, and nothing more can be left out of it. The work so "
        "far is kept; go on in a new task with a smaller scope, or use a model with a larger window."
    )
    return TurnError(ErrorInfo.of(ErrorCode.CONTEXT_WINDOW_EXCEEDED, message))


def _backoff(attempt: int) -> float:
    spread = random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - not a secret
    return min(_FIRST_DELAY_S * float(2 ** (attempt - 1)), _LONGEST_DELAY_S) * spread
