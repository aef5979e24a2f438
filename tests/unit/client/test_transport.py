import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from patchyard.client import (
    BadAnswer,
    Conflict,
    ConnectionFailed,
    InvalidRequest,
    PatchyardClient,
    QueueFull,
    RetryPolicy,
    ServiceUnavailable,
    SyncPatchyardClient,
    Unauthorized,
)
from patchyard.client._events import LiveTexts
from patchyard.client._sse import FrameParser
from patchyard.protocol.events import AgentMessageDelta, Event, ItemCompleted
from patchyard.protocol.items import AgentMessageItem
from patchyard.protocol.ops import Interrupt
from patchyard.protocol.tasks import NoSource, TaskSpec

Answer = Callable[[httpx.Request], httpx.Response]
RECEIPT = {"submission_id": "s", "admission": {"type": "applied"}}
SPEC = TaskSpec(repository=NoSource(), instruction="x")


def problem(status: int, code: str, *, retryable: bool = False, retry_after: str | None = None) -> httpx.Response:
    body = {"title": code, "status": status, "detail": "what to do", "code": code, "retryable": retryable, "request_id": "r1"}
    headers = {"retry-after": retry_after} if retry_after else {}
    return httpx.Response(status, json=body, headers=headers)


def ask(answers: list[Answer | Exception], call: Callable[[PatchyardClient], Any], retry: RetryPolicy | None = None) -> Any:
    """Run a call against scripted answers; every one of them must be used."""
    left = list(answers)
    requests: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer(request)

    async def run() -> Any:
        async with PatchyardClient("http://x", "t", retry=retry, transport=httpx.MockTransport(handle)) as client:
            return await call(client)

    try:
        return asyncio.run(run()), requests
    finally:
        assert left == []


def ok(value: dict[str, Any]) -> Answer:
    return lambda _request: httpx.Response(200, json=value)


def test_a_lost_answer_is_repeated_with_the_same_key() -> None:
    _, requests = ask(
        [httpx.ReadError("gone"), ok(RECEIPT)], lambda client: client.submit("t", Interrupt()), RetryPolicy(attempts=3)
    )
    keys = [json.loads(request.content)["idempotency_key"] for request in requests]
    assert len(keys) == 2
    assert keys[0] == keys[1]


def test_a_full_queue_is_waited_for_unless_told_not_to() -> None:
    full: Answer = lambda _request: problem(429, "queue_full", retryable=True, retry_after="0")  # noqa: E731
    receipt, _ = ask([full, full, ok(RECEIPT)], lambda client: client.submit("t", Interrupt()))
    assert receipt.submission_id == "s"
    with pytest.raises(QueueFull):
        ask([full], lambda client: client.submit("t", Interrupt()), RetryPolicy(wait_when_full_s=0))


def test_a_part_that_is_away_is_tried_again_and_then_reported() -> None:
    away: Answer = lambda _request: problem(503, "queue_unavailable", retryable=True)  # noqa: E731
    with pytest.raises(ServiceUnavailable) as refused:
        ask([away, away], lambda client: client.create_task(SPEC), RetryPolicy(attempts=2))
    assert (refused.value.code, refused.value.request_id) == ("queue_unavailable", "r1")
    for_good: Answer = lambda _request: problem(503, "catalog_unavailable")  # noqa: E731
    with pytest.raises(ServiceUnavailable):
        ask([for_good], lambda client: client.create_task(SPEC), RetryPolicy(attempts=5))


def test_nobody_there_says_how_to_start_a_service() -> None:
    with pytest.raises(ConnectionFailed) as failed:
        ask([httpx.ConnectError("refused")], lambda client: client.info(), RetryPolicy(attempts=1))
    assert "patchyard up" in str(failed.value.remedy)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (problem(401, "unauthorized"), Unauthorized),
        (problem(409, "thread_closed"), Conflict),
        (problem(400, "invalid_request"), InvalidRequest),
        (httpx.Response(404, text="<html>nginx</html>"), BadAnswer),
        (httpx.Response(200, text="<html>a captive portal</html>"), BadAnswer),
        (httpx.Response(502, text="<html>bad gateway</html>"), ServiceUnavailable),
    ],
)
def test_refusals_are_told_apart(answer: httpx.Response, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        ask([lambda _request: answer], lambda client: client.info(), RetryPolicy(attempts=1))


def test_a_damaged_upload_is_noticed() -> None:
    def damaged(request: httpx.Request) -> httpx.Response:
        return httpx.Response(201, json={"artefact_id": "a", "bytes": 3, "sha256": "0" * 64})

    with pytest.raises(BadAnswer, match="damaged"):
        ask([damaged], lambda client: client.upload(b"abc"))


def test_frames_survive_any_cut() -> None:
    text = ': hello\n\nid: 7\nevent: warning\ndata: {"a":\ndata: 1}\r\n\r\nevent: x\ndata: é\n\nid: 9\n\ndata: cut off'
    for size in (1, 2, 3, 7, 1000):
        parser = FrameParser()
        data = text.encode()
        found = [frame for at in range(0, len(data), size) for frame in parser.feed(data[at : at + size])]
        assert [(frame.event, frame.data, frame.id) for frame in found] == [
            ("warning", '{"a":\n1}', "7"),
            ("x", "é", None),
        ]


def test_text_that_a_new_connection_repeats_is_passed_on_once() -> None:
    def delta(text: str) -> Event:
        return Event(tenant_id="default", thread_id="t", msg=AgentMessageDelta(item_id="i", delta=text))

    def shown(event: Event | None) -> str | None:
        return event.msg.delta if event is not None and isinstance(event.msg, AgentMessageDelta) else None

    texts = LiveTexts()
    assert shown(texts.unseen(delta("hel"))) == "hel"
    texts.reconnect()
    assert shown(texts.unseen(delta("hello"))) == "lo"
    assert shown(texts.unseen(delta(" you"))) == " you"
    texts.reconnect()
    assert texts.unseen(delta("hello you")) is None
    assert shown(texts.unseen(delta("!"))) == "!"
    item = AgentMessageItem(id="i", text="hello you!")
    texts.note(Event(tenant_id="default", thread_id="t", ordinal=1, msg=ItemCompleted(item=item, completed_at=1)))
    texts.reconnect()
    assert shown(texts.unseen(delta("hello you!"))) == "hello you!", "another item by the same name"


def test_the_blocking_client_needs_no_loop() -> None:
    with SyncPatchyardClient("http://127.0.0.1:9", "t", retry=RetryPolicy(attempts=1)) as client:
        with pytest.raises(ConnectionFailed):
            client.get_task("x")
        with pytest.raises(ConnectionFailed):
            client.call(lambda inner: inner.info())
