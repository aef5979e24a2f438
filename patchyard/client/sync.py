"""The SDK for programs without an event loop: the same client, driven from a loop in a thread of its own."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from anyio.from_thread import start_blocking_portal

from patchyard.protocol.events import Event
from patchyard.protocol.ops import Op, SubmissionReceipt
from patchyard.protocol.tasks import ArtefactView, TaskCreateResponse, TaskSpec, TaskView

from ._transport import RetryPolicy
from .client import PatchyardClient

T = TypeVar("T")


class SyncPatchyardClient:
    """The calls that scripts need, blocking. Everything else: `call(lambda client: client.…)`. Use it as `with`."""

    def __init__(self, base_url: str, token: str | None = None, *, retry: RetryPolicy | None = None) -> None:
        self._stack = ExitStack()
        self._portal = self._stack.enter_context(start_blocking_portal())
        self._client = self._portal.call(self._make, base_url, token, retry)

    @staticmethod
    async def _make(base_url: str, token: str | None, retry: RetryPolicy | None) -> PatchyardClient:
        return PatchyardClient(base_url, token, retry=retry)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and stop the thread."""
        try:
            self._portal.call(self._client.aclose)
        finally:
            self._stack.close()

    def call(self, ask: Callable[[PatchyardClient], Awaitable[T]]) -> T:
        """Any call of the asynchronous client: `client.call(lambda c: c.info())`."""

        async def run() -> T:
            return await ask(self._client)

        return self._portal.call(run)

    def create_task(self, spec: TaskSpec, *, idempotency_key: str | None = None) -> TaskCreateResponse:
        """See PatchyardClient.create_task."""
        return self.call(lambda client: client.create_task(spec, idempotency_key=idempotency_key))

    def get_task(self, task_id: str) -> TaskView:
        """See PatchyardClient.get_task."""
        return self.call(lambda client: client.get_task(task_id))

    def cancel_task(self, task_id: str) -> TaskView:
        """See PatchyardClient.cancel_task."""
        return self.call(lambda client: client.cancel_task(task_id))

    def submit(self, thread_id: str, op: Op, *, idempotency_key: str | None = None) -> SubmissionReceipt:
        """See PatchyardClient.submit."""
        return self.call(lambda client: client.submit(thread_id, op, idempotency_key=idempotency_key))

    def upload(self, content: bytes | Path) -> ArtefactView:
        """See PatchyardClient.upload."""
        return self.call(lambda client: client.upload(content))

    def patch(self, task_id: str) -> bytes:
        """See PatchyardClient.patch."""
        return self.call(lambda client: client.patch(task_id))

    def task_events(self, task_id: str, **options: Any) -> Iterator[Event]:
        """See PatchyardClient.task_events."""
        return self._iterate(self._client.task_events(task_id, **options))

    def wait(self, task_id: str) -> TaskView:
        """Block until the task's turn has ended."""
        for _event in self.task_events(task_id):
            pass
        return self.get_task(task_id)

    def _iterate(self, events: AsyncGenerator[Event, None]) -> Iterator[Event]:
        try:
            while (event := self._portal.call(anext, events, None)) is not None:
                yield event
        finally:
            self._portal.call(events.aclose)
