import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from patchyard.adapters.catalog import CatalogUnavailable
from patchyard.client import NotFound, QueueFull, ServiceUnavailable
from patchyard.protocol import events
from patchyard.protocol.ids import new_id
from patchyard.protocol.ops import NotSubmitted, Shutdown, Steered, Submission, TextInput, TurnInput
from patchyard.protocol.tasks import GitSource, PatchSummary, TaskStatus, VerifyResult, VerifySpec
from patchyard.rollout import decode_line
from tests.unit.api.kit import AUTH, OTHER_AUTH, OTHER_TOKEN, body, serving, spec


def test_a_task_is_accepted_listed_and_shown(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as api:
            response = await api.http.post("/v1/tasks", json=body())
            created = response.json()
            assert response.status_code == 202
            assert response.headers["location"] == f"/v1/tasks/{created['task_id']}"
            assert not created["duplicate"]
            shown = (await api.http.get(f"/v1/tasks/{created['task_id']}")).json()
            assert (shown["status"], shown["title"]) == ("queued", "Fix the parser.")
            assert shown["trace_id"] == created["trace_id"]
            listed = (await api.http.get("/v1/tasks")).json()
            assert [task["id"] for task in listed["data"]] == [created["task_id"]]
            thread = (await api.http.get(f"/v1/threads/{created['thread_id']}")).json()
            assert (thread["status"], thread["active_turn_id"]) == ("queued", created["turn_id"])
            assert api.bell.rings == 1

    asyncio.run(run())


def test_the_same_idempotency_key_gives_the_first_answer_and_one_submission(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as api, api.sdk() as client:
            answers = await asyncio.gather(*(client.create_task(spec(), idempotency_key="k") for _ in range(8)))
            assert len({answer.task_id for answer in answers}) == 1
            assert sum(not answer.duplicate for answer in answers) == 1
            state = await api.queue.thread_state(answers[0].thread_id)
            assert state is not None
            assert state.waiting == 1
            other = await client.create_task(spec(), idempotency_key="another")
            assert other.task_id != answers[0].task_id

    asyncio.run(run())


def test_a_clients_trace_is_kept_and_a_broken_one_replaced(tmp_path: Path) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"

    async def run() -> None:
        async with serving(tmp_path) as api:
            headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01", "tracestate": "vendor=1"}
            created = (await api.http.post("/v1/tasks", json=body(), headers=headers)).json()
            assert created["trace_id"] == trace
            worker = await api.worker()
            submission = await worker.channel.receive()
            assert submission.trace is not None
            assert submission.trace.traceparent.split("-")[1] == trace
            assert submission.trace.tracestate == "vendor=1"
            for broken in (
                "00-zz-b7ad6b7169203331-01",
                f"ff-{trace}-b7ad6b7169203331-01",
                f"00-{'0' * 32}-b7ad6b7169203331-01",
            ):
                created = (await api.http.post("/v1/tasks", json=body(), headers={"traceparent": broken})).json()
                assert re.fullmatch(r"[0-9a-f]{32}", created["trace_id"])
                assert created["trace_id"] not in (trace, "0" * 32)

    asyncio.run(run())


def test_other_tenants_things_are_not_found(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as api, api.sdk() as client:
            created = await client.create_task(spec())
            artefact = await client.upload(b"mine")
            paths = [
                f"/v1/tasks/{created.task_id}{rest}" for rest in ("", "/events", "/rollout", "/patch", "/trace", "/verify-log")
            ]
            paths += [f"/v1/threads/{created.thread_id}{rest}" for rest in ("", "/events", "/rollout")]
            paths += [f"/v1/artefacts/{artefact.artefact_id}"]
            for path in paths:
                theirs = await api.http.get(path, headers=OTHER_AUTH)
                unknown = await api.http.get(path.replace(created.task_id, new_id()).replace(created.thread_id, new_id()))
                assert (theirs.status_code, theirs.json()["code"]) == (404, "not_found"), path
                if "artefacts" not in path:
                    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found"), path
            cancelled = await api.http.post(f"/v1/tasks/{created.task_id}/cancel", headers=OTHER_AUTH)
            op = {"op": {"type": "interrupt"}}
            asked = await api.http.post(f"/v1/threads/{created.thread_id}/ops", json=op, headers=OTHER_AUTH)
            assert (cancelled.status_code, asked.status_code) == (404, 404)
            async with api.sdk(OTHER_TOKEN) as other:
                assert (await other.list_tasks_page()).data == ()
            assert (await client.get_task(created.task_id)).status is TaskStatus.QUEUED

    asyncio.run(run())


def test_cancelling_a_waiting_task_ends_it_at_once_without_a_worker(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as api, api.sdk() as client:
            created = await client.create_task(spec())
            cancelled = await client.cancel_task(created.task_id)
            assert cancelled.status is TaskStatus.CANCELLED
            again = await client.cancel_task(created.task_id)
            assert again == cancelled
            seen = [event.msg.type async for event in client.task_events(created.task_id)]
            assert "turn_interrupted" in seen
            assert await api.queue.claim("w") is None

    asyncio.run(run())


def test_what_an_event_said_is_already_in_the_task(tmp_path: Path) -> None:
    """The projection runs in the workers; whoever saw an event must not be shown an older task."""
    patch = PatchSummary(artefact_id="a", files=1, insertions=2, deletions=1, bytes=10)
    passed = VerifyResult(passed=True, exit_code=0, round=1, log_artefact_id="log")

    async def run() -> None:
        async with serving(tmp_path) as api, api.sdk() as client:
            created = await client.create_task(spec(verify=VerifySpec(command="true")))
            worker = await api.worker()
            await worker.start()
            assert (await client.get_task(created.task_id)).status is TaskStatus.RUNNING
            for name, data in (("a", b"diff --git"), ("log", b"1 passed")):
                await api.deps.store.put(f"default/artefacts/{name}", data)
            await worker.say(events.PatchProduced(patch=patch), events.VerificationCompleted(result=passed))
            await worker.finish()
            task = await client.get_task(created.task_id)
            assert (task.status, task.verified, task.patch) == (TaskStatus.SUCCEEDED, True, patch)
            assert task.usage is not None
            assert task.usage.total_tokens == 13
            assert await client.patch(created.task_id) == b"diff --git"
            assert await client.verify_log(created.task_id) == b"1 passed"

    asyncio.run(run())


def test_a_task_that_the_job_projects_meanwhile_is_not_shown_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the API's first look at the row and its question how far the projection is, the job in a worker does it all."""

    async def run() -> None:
        async with serving(tmp_path) as api:
            created = (await api.http.post("/v1/tasks", json=body())).json()
            worker = await api.worker()
            await worker.start()
            await worker.finish()
            catalog = api.deps.catalog
            asked = catalog.applied_through

            async def job_was_faster(tenant_id: str, thread_id: str) -> int:
                lines = [decode_line(line.json) for line in await api.queue.read_lines(thread_id, after=None, limit=100)]
                await catalog.apply_lines(tenant_id, thread_id, lines)
                return await asked(tenant_id, thread_id)

            monkeypatch.setattr(catalog, "applied_through", job_was_faster)
            shown = (await api.http.get(f"/v1/tasks/{created['task_id']}")).json()
            assert shown["status"] == "succeeded"

    asyncio.run(run())


def test_patch_and_log_that_do_not_exist_yet_say_why(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as api, api.sdk() as client:
            created = await client.create_task(spec())
            with pytest.raises(NotFound, match="it is queued"):
                await client.patch(created.task_id)
            with pytest.raises(NotFound, match="no verify command was given"):
                await client.verify_log(created.task_id)

    asyncio.run(run())


def test_pages_are_walked_to_the_end(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as api, api.sdk() as client:
            ids = [(await client.create_task(spec(instruction=f"task {n}"))).task_id for n in range(5)]
            page = await client.list_tasks_page(limit=2)
            assert page.next_cursor
            rest = await client.list_tasks_page(limit=2, cursor=page.next_cursor)
            assert [task.id for task in (*page.data, *rest.data)] == ids[:0:-1]
            assert [task.id async for task in client.list_tasks(query="task 3")] == [ids[3]]
            bad = await api.http.get("/v1/tasks", params={"cursor": "nonsense"})
            assert (bad.status_code, bad.json()["code"]) == (400, "invalid_request")

    asyncio.run(run())


def test_an_unreachable_queue_accepts_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as api, api.sdk() as client:
            api.memory.available = False
            with pytest.raises(ServiceUnavailable) as refused:
                await client.create_task(spec())
            assert (refused.value.code, refused.value.retryable) == ("queue_unavailable", True)
            ready = await client.readiness()
            assert [(part.name, part.state) for part in ready.components] == [
                ("queue", "failed"),
                ("catalog", "ok"),
                ("store", "ok"),
            ]
            api.memory.available = True
            assert (await client.list_tasks_page()).data == ()
            assert await api.deps.desk.sweep(older_than_ms=0) == 0
            assert (await client.readiness()).ready

    asyncio.run(run())


def test_a_task_whose_api_died_half_way_is_swept_into_the_queue_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with serving(tmp_path) as api, api.sdk() as client:
            submit = api.queue.submit

            async def die(*_: Any, **__: Any) -> None:
                raise RuntimeError("as if the process ended here")

            monkeypatch.setattr(api.queue, "submit", die)
            died = await api.http.post("/v1/tasks", json={**body(), "idempotency_key": "k"})
            assert (died.status_code, died.json()["code"]) == (500, "internal")
            assert "as if" not in died.text
            monkeypatch.setattr(api.queue, "submit", submit)
            (left,) = (await client.list_tasks_page()).data
            assert (left.status, left.reason) == (TaskStatus.QUEUED, "submitting")
            trace_id = left.trace_id
            assert await api.deps.desk.sweep() == 0, "younger than ten seconds: its API may still be at it"
            assert await api.deps.desk.sweep(older_than_ms=0) == 1
            again = await client.create_task(spec(), idempotency_key="k")
            assert (again.task_id, again.duplicate, again.trace_id) == (left.id, True, trace_id)
            await api.deps.desk.close()
            assert (await client.get_task(left.id)).reason == "queued"
            assert await api.deps.desk.sweep(older_than_ms=0) == 0
            state = await api.queue.thread_state(left.thread_id)
            assert state is not None
            assert state.waiting == 1

    asyncio.run(run())


def test_a_catalog_that_is_away_refuses_tasks_but_not_running_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with serving(tmp_path) as api, api.sdk() as client:
            created = await client.create_task(spec())

            async def away(*_: Any, **__: Any) -> None:
                raise CatalogUnavailable("it is unplugged")

            monkeypatch.setattr(api.deps.catalog, "create_task", away)
            with pytest.raises(ServiceUnavailable) as refused:
                await client.create_task(spec())
            assert refused.value.code == "catalog_unavailable"
            op = TurnInput(items=(TextInput(text="more"),))
            assert isinstance((await client.submit(created.thread_id, op)).admission, Steered)

    asyncio.run(run())


def test_a_full_thread_answers_429_with_the_time_to_wait(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as api, api.sdk() as client:
            created = await client.create_task(spec())
            op = TurnInput(items=(TextInput(text="more"),))
            for number in range(511):
                await api.queue.submit(
                    Submission(id=new_id(), tenant_id="default", thread_id=created.thread_id, op=op, submitted_at=number)
                )
            response = await api.http.post(f"/v1/threads/{created.thread_id}/ops", json={"op": op.model_dump(mode="json")})
            assert (response.status_code, response.json()["code"]) == (429, "queue_full")
            assert int(response.headers["retry-after"]) >= 1
            with pytest.raises(QueueFull) as full:
                await client.submit(created.thread_id, op)
            assert full.value.retry_after_s
            # A flooded thread can still be stopped.
            assert (await client.cancel_task(created.task_id)).status is TaskStatus.CANCELLED

    asyncio.run(run())


def test_ops_are_answered_and_internal_ones_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as api, api.sdk() as client:
            created = await client.create_task(spec())
            path = f"/v1/threads/{created.thread_id}/ops"
            first = await client.submit(created.thread_id, TurnInput(items=(TextInput(text="a"),)), idempotency_key="x")
            second = await client.submit(created.thread_id, TurnInput(items=(TextInput(text="a"),)), idempotency_key="x")
            assert (first.submission_id, second.duplicate) == (second.submission_id, True)
            empty = await client.submit(created.thread_id, TurnInput(items=()))
            assert isinstance(empty.admission, NotSubmitted)
            inner = await api.http.post(path, json={"op": {"type": "recover_turn", "turn_id": created.turn_id}})
            assert (inner.status_code, inner.json()["code"]) == (400, "invalid_request")
            wrong = await api.http.post(path, json={"op": {"type": "interrupt", "turn_id": 5}})
            assert wrong.json()["errors"] == [{"field": "op.interrupt.turn_id", "message": "Input should be a valid string"}]
            more = {"type": "budget_answer", "request_id": "b", "decision": "accept", "budgets": {"tokens": 5000}}
            taken = await api.http.post(path, json={"op": more})
            assert taken.json()["admission"] == {"type": "applied"}
            no = await api.http.post(path, json={"op": {**more, "decision": "decline"}})
            assert "can only be given with the decision `accept`" in no.json()["errors"][0]["message"]
            too_little = await api.http.post(path, json={"op": {**more, "budgets": {"tokens": 0}}})
            assert too_little.json()["errors"][0]["field"] == "op.budget_answer.budgets.tokens"
            unknown = await api.http.post(path, json={"op": {"type": "dance"}})
            assert unknown.json()["errors"][0]["field"] == "op"
            await client.submit(created.thread_id, Shutdown())
            closed = await api.http.post(path, json={"op": {"type": "interrupt"}})
            assert (closed.status_code, closed.json()["code"]) == (409, "thread_closed")

    asyncio.run(run())


@pytest.mark.parametrize("field", [{"model": "\ud800"}, {"labels": {"a": "\udc00"}}, {"instruction": "\ud800"}])
def test_half_a_character_is_a_mistake_of_the_request(tmp_path: Path, field: dict[str, object]) -> None:
    async def run() -> None:
        async with serving(tmp_path) as api:
            wanted = {"spec": {"repository": {"type": "none"}, "instruction": "x"} | field}
            content = json.dumps(wanted).encode()
            answer = await api.http.post("/v1/tasks", content=content, headers={"content-type": "application/json"})
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("file:///etc", "repository_not_allowed"),
        ("https://[no-address/r.git", "repository_not_allowed"),
        ("ext::sh -c id", "repository_not_allowed"),
        ("--upload-pack=x", "repository_not_allowed"),
        ("http://example.org/r.git", "repository_not_allowed"),
        ("https://user:secret@example.org/r.git", "repository_not_allowed"),
        ("relative/path", "repository_not_allowed"),
        ("/no/such/folder", "repository_not_found"),
    ],
)
def test_repositories_that_can_not_be_used_are_refused_before_anything_is_written(tmp_path: Path, url: str, code: str) -> None:
    async def run() -> None:
        async with serving(tmp_path) as api:
            response = await api.http.post("/v1/tasks", json=body(repository=GitSource(url=url)))
            assert response.json()["code"] == code
            assert "secret" not in response.text
            assert (await api.http.get("/v1/tasks")).json()["data"] == []

    asyncio.run(run())


def test_local_paths_are_for_the_local_user_only(tmp_path: Path) -> None:
    repository = tmp_path / "repo"
    repository.mkdir()
    (repository / "a.py").write_text("x = 1\n")

    async def run() -> None:
        async with serving(tmp_path) as api:
            wanted = body(repository=GitSource(url=str(repository)))
            assert (await api.http.post("/v1/tasks", json=wanted)).status_code == 202
            theirs = await api.http.post("/v1/tasks", json=wanted, headers=OTHER_AUTH)
            assert (theirs.status_code, theirs.json()["code"]) == (403, "repository_not_allowed")
            ssh = await api.http.post("/v1/tasks", json=body(repository=GitSource(url="git@example.org:a/b.git")))
            assert ssh.status_code == 202
            overlay = body(verify=VerifySpec(command="true", overlay_artefact_id="none"))
            missing = await api.http.post("/v1/tasks", json=overlay)
            assert (missing.status_code, "verify.overlay_artefact_id" in missing.json()["detail"]) == (404, True)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"instruction": "  "}, "spec.instruction"),
        ({"budgets": {"tokens": 0}}, "spec.budgets.tokens"),
        ({"sandbox": {"type": "open-bar"}}, "spec.sandbox"),
        ({"surprise": 1}, "spec.surprise"),
        ({"verify": {"command": "x", "timeout_s": 0}}, "spec.verify.timeout_s"),
    ],
)
def test_a_wrong_field_is_named_by_its_path(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    async def run() -> None:
        async with serving(tmp_path) as api:
            wanted = body()
            wanted["spec"].update(change)
            response = await api.http.post("/v1/tasks", json=wanted)
            problem = response.json()
            assert response.status_code == 400
            assert response.headers["content-type"] == "application/problem+json"
            assert set(problem) == {"type", "title", "status", "detail", "code", "retryable", "request_id", "errors"}
            assert problem["errors"][0]["field"] == field
            assert problem["detail"].startswith(field)

    asyncio.run(run())


def test_who_asks_must_say_so(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as api:
            for headers in ({"authorization": ""}, {"authorization": "Bearer nope"}, {"authorization": "Basic dXNlcg=="}):
                response = await api.http.get("/v1/info", headers=headers)
                assert (response.status_code, response.json()["code"]) == (401, "unauthorized")
                assert response.headers["www-authenticate"] == "Bearer"
            assert (await api.http.get("/healthz", headers={"authorization": ""})).json() == {"status": "ok"}
            info = (await api.http.get("/v1/info")).json()
            assert (info["tenant_id"], info["local_paths"], info["model"]) == ("default", True, "gpt-5.5")
            theirs = (await api.http.get("/v1/info", headers=OTHER_AUTH)).json()
            assert (theirs["tenant_id"], theirs["local_paths"]) == ("other", False)

    asyncio.run(run())


def test_requests_are_named_and_bounded(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path, max_upload_bytes=1000) as api:
            named = await api.http.get("/v1/nowhere", headers={"x-request-id": "my-request.1"})
            assert (named.status_code, named.json()["request_id"]) == (404, "my-request.1")
            odd = await api.http.get("/v1/nowhere", headers={"x-request-id": "a b\tc"})
            assert re.fullmatch(r"[0-9a-f]{16}", odd.headers["x-request-id"])
            big = await api.http.post("/v1/tasks", content=b"x" * (3 << 20), headers={"content-type": "application/json"})
            assert (big.status_code, big.json()["code"]) == (413, "payload_too_large")

            async def endless() -> Any:
                for _ in range(10):
                    yield b"y" * 400

            streamed = await api.http.post("/v1/artefacts", content=endless())
            assert (streamed.status_code, streamed.json()["code"]) == (413, "payload_too_large")
            page = await api.deps.store.list("default/artefacts/")
            assert page.keys == ()
            wrong_method = await api.http.put("/v1/tasks", headers=AUTH)
            assert wrong_method.status_code == 405

    asyncio.run(run())
