"""One request with its retries; answers become models, refusals become exceptions."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from pydantic import ValidationError

from patchyard.protocol.service import Problem

from .errors import BadAnswer, ConnectionFailed, QueueFull, RequestRefused, ServiceUnavailable, refusal

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
_SNIPPET = 200
"""Characters of a foreign answer that an error shows."""


@dataclass(frozen=True)
class RetryPolicy:
    """When a request that may be repeated is repeated."""

    attempts: int = 4
    """Tries in all when nothing answers or a part behind the API is away."""
    wait_when_full_s: float = 600
    """How long `queue_full` is waited out; 0: it is raised at once."""


class Transport:
    """httpx with Patchyard's errors. Requests that are safe to repeat are repeated."""

    def __init__(self, http: httpx.AsyncClient, policy: RetryPolicy) -> None:
        self._http = http
        self._policy = policy

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json: str | None = None,
        repeatable: bool | None = None,
        also_good: Sequence[int] = (),
    ) -> httpx.Response:
        """A good answer, or PatchyardError. `repeatable` None: by the method. `also_good`: statuses that are answers too."""
        may_repeat = method in ("GET", "HEAD") if repeatable is None else repeatable
        headers = {"content-type": "application/json"} if json is not None else {}
        failures = 0
        waited = 0.0
        while True:
            try:
                response = await self._http.request(method, path, params=_clean(params), content=json, headers=headers)
                return response if response.status_code in also_good else await checked(response)
            except QueueFull as full:
                pause = full.retry_after_s or 1.0
                if waited + pause > self._policy.wait_when_full_s:
                    raise
                waited += pause
            except httpx.TransportError as error:
                failures += 1
                # A connection that was never made has carried nothing: that may be repeated for any request.
                if not (may_repeat or isinstance(error, httpx.ConnectError)) or failures >= self._policy.attempts:
                    raise connection_failed(self._http.base_url, error) from error
                pause = backoff_s(failures)
            except ServiceUnavailable as unavailable:
                failures += 1
                if not (may_repeat and unavailable.retryable) or failures >= self._policy.attempts:
                    raise
                pause = unavailable.retry_after_s or backoff_s(failures)
            await asyncio.sleep(pause)

    async def send_stream(self, method: str, path: str, content: AsyncIterator[bytes]) -> httpx.Response:
        """A request with a streamed body; it is not repeated."""
        try:
            return await checked(await self._http.request(method, path, content=content, timeout=None))
        except httpx.TransportError as error:
            raise connection_failed(self._http.base_url, error) from error

    @asynccontextmanager
    async def open_stream(
        self,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        silent_for_s: float | None = None,
    ) -> AsyncIterator[httpx.Response]:
        """A GET whose body is read bit by bit. httpx.TransportError is the caller's to judge once the body flows."""
        timeout = httpx.Timeout(30, read=silent_for_s)
        async with self._http.stream("GET", path, params=_clean(params), headers=headers, timeout=timeout) as response:
            await checked(response)
            yield response

    @property
    def base_url(self) -> httpx.URL:
        """Where the service is."""
        return self._http.base_url


async def checked(response: httpx.Response) -> httpx.Response:
    """The response, if it is a good one; the refusal is raised."""
    if response.is_success:
        return response
    await response.aread()
    raise _refused(response)


def _refused(response: httpx.Response) -> RequestRefused | BadAnswer:
    retry_after = response.headers.get("retry-after", "")
    retry_after_s = float(retry_after) if retry_after.isdigit() else None
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        if response.status_code in (502, 503, 504):
            # A proxy in front speaks for a service that is away.
            title = f"HTTP {response.status_code}"
            problem = Problem(title=title, status=response.status_code, code="queue_unavailable", retryable=True)
            return refusal(problem, retry_after_s=retry_after_s)
        return BadAnswer(
            f"{response.request.url} answered HTTP {response.status_code} in a form that is not Patchyard's: "
            f"{response.text[:_SNIPPET]!r}",
            remedy="Check PATCHYARD_API_URL.",
        )
    return refusal(problem, retry_after_s=retry_after_s)


def connection_failed(base_url: httpx.URL, error: Exception) -> ConnectionFailed:
    """The exception for a service that can't be reached."""
    return ConnectionFailed(
        f"No Patchyard service answers at {str(base_url).rstrip('/')} ({type(error).__name__}: {error}).",
        remedy="Start one with `patchyard up --detach`, or set PATCHYARD_API_URL.",
    )


def backoff_s(failures: int) -> float:
    """Seconds before the next try: doubling, jittered, bounded."""
    pause: float = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (failures - 1))
    return pause * random.uniform(0.7, 1.3)  # noqa: S311 - spread, no secret


def _clean(params: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if params is None else {key: value for key, value in params.items() if value is not None}
