"""A budget that is used up, with everything real but the model: what a waiting turn holds, and how each answer ends it."""

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from patchyard.adapters.queue import ThreadStatus
from patchyard.protocol.budgets import BudgetRequest
from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.events import (
    TERMINAL_TURN_TYPES,
    PatchProduced,
    RequestResolved,
    TurnFailed,
    TurnParked,
    TurnRecovered,
)
from patchyard.protocol.ops import BudgetAnswer, Submission, TextInput, TurnInput
from patchyard.protocol.policies import BudgetLimits
from patchyard.protocol.tasks import TaskStatus
from tests.waiting import WAIT_S, wait_for

from .repositories import FIX, VERIFY, buggy_repository
from .service import Service, Task, lose
from .test_patch import call, patch, results, run, say, script, spec, states

pytestmark = [pytest.mark.engine, pytest.mark.redis, pytest.mark.timeout(300)]

SPENDS = {"usage": {"input_tokens": 1_000, "output_tokens": 100}}
LITTLE = {"usage": {"input_tokens": 100, "output_tokens": 10}}
SOON = {"PATCHYARD_HOLD_TIME_S": "0.2"}
PRICED = """
[providers.priced]
base_url = "{url}"
api_key_env = "PATCHYARD_MODEL_API_KEY"
models = ["priced-1"]

[providers.priced.prices.priced-1]
input_per_million = 1000
output_per_million = 1000
"""

LOOK = {**call("cat calc.py"), **SPENDS}
KINDS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "model_requests": ({"model_requests": 1}, [LOOK]),
    "tool_calls": ({"tool_calls": 1}, [LOOK]),
    "tokens": ({"tokens": 1_000}, [LOOK]),
    "cost_usd": ({"cost_usd": 1.0}, [LOOK]),
    "wall_time_s": ({"wall_time_s": 4}, [{"hang_after": 1, **say("never heard")}]),
}
MUCH = {"wall_time_s": 30}
"""What is given on top of what is used, where that is not more than anything needs. A silent model takes all of it."""
MORE = BudgetLimits(model_requests=50)


def asking(repository: Path | None, case: str, **limits: Any) -> dict[str, Any]:
    """A task of somebody who can be asked."""
    return {**spec(repository, case), "approval": "on-request", "budgets": limits}


def question_of(events: list[Any]) -> BudgetRequest:
    (question,) = [event for event in events if isinstance(event, BudgetRequest)]
    return question


def accept(question: BudgetRequest, **limits: Any) -> BudgetAnswer:
    return BudgetAnswer(request_id=question.request_id, decision="accept", budgets=BudgetLimits(**limits) if limits else None)


async def answered(task: Task, kind: str) -> list[Any]:
    """Say yes to every question; all events of the turn."""
    given = 0
    until = time.monotonic() + 3 * WAIT_S
    while time.monotonic() < until:
        events = await task.events()
        if any(event.type in TERMINAL_TURN_TYPES for event in events):
            return events
        asked = [event for event in events if isinstance(event, BudgetRequest)]
        if len(asked) > given:
            given = len(asked)
            receipt = await task.ask(accept(asked[-1], **{kind: int(asked[-1].used) + MUCH.get(kind, 100_000)}))
            assert receipt.admission.type == "applied"
        await task.service.news()
    raise AssertionError(f"the turn did not end: {await task.events()}\n{task.service.logs()}")


async def gone(service: Service, task: Task) -> None:
    """Until the task's box is gone: its removal is off the turn's path."""
    await asyncio.to_thread(wait_for, lambda: task.thread_id not in service.containers(), "the container is gone")


def test_a_waiting_turn_holds_nothing_and_goes_on_under_its_id(tmp_path: Path) -> None:
    scripted = script(
        **{kind: [*steps, {**patch(FIX), **LITTLE}, {**say("Fixed."), **LITTLE}] for kind, (_, steps) in KINDS.items()},
        other=[say("Nothing to do.")],
    )

    async def body(service: Service) -> None:
        (service.settings.home / "patchyard.toml").write_text(PRICED.format(url=service.model.base_url))
        await service.start_worker(**SOON, PATCHYARD_TENANT_CAP="1")
        repository = buggy_repository(tmp_path)
        tasks: dict[str, Task] = {}
        for kind, (limits, _) in KINDS.items():
            model = {"model": "priced/priced-1"} if kind == "cost_usd" else {}
            tasks[kind] = await service.create(asking(repository, kind, **limits) | model | {"verify": {"command": VERIFY}})
        for kind, task in tasks.items():
            events = await task.wait_for("turn_parked")
            parked = next(event for event in events if isinstance(event, TurnParked))
            assert (kind, parked.reason) == (kind, "budget")
            assert next(event.budget for event in events if isinstance(event, BudgetRequest)) == kind
            state = await service.queue.thread_state(task.thread_id)
            assert state is not None
            assert (state.status, state.worker, state.active_turn_id) == (ThreadStatus.PARKED, None, task.turn_id)
            await gone(service, task)
            view = await service.task_view(task)
            assert (view.status, view.reason) == (TaskStatus.WAITING, "budget")
        other = await service.create(spec(None, "other"))
        await other.ended()  # one turn at a time, and five of them wait: they have no slot

        for kind, task in tasks.items():
            events = await answered(task, kind)
            kinds = [event.type for event in events]
            assert (kinds.count("turn_started"), kinds.count("turn_completed")) == (1, 1), f"{kind}: {events}"
            assert "unparked" in [event.reason for event in events if isinstance(event, TurnRecovered)]
            assert results(events)[-1].passed, results(events)[-1].output_tail
            assert states(events)[-1] == (TaskStatus.SUCCEEDED, "verified")
            assert {line.turn_id for line in await task.lines() if line.turn_id} == {task.turn_id}

    run(tmp_path, scripted, body, workers=0)


def test_a_no_ends_the_turn_with_what_it_has(tmp_path: Path) -> None:
    steps = [{**patch(FIX), **SPENDS}, say("It is half done.")]

    async def body(service: Service) -> None:
        await service.start_worker()
        repository = buggy_repository(tmp_path)
        declined = await service.create(asking(repository, "declined", tokens=1_000))
        cancelled = await service.create(asking(repository, "cancelled", tokens=1_000))
        for task, decision in ((declined, "decline"), (cancelled, "cancel")):
            question = question_of(await task.wait_for("budget_request"))
            await task.ask(BudgetAnswer.model_validate({"request_id": question.request_id, "decision": decision}))
        await check_ended(service, declined, "decline")
        await cancelled.wait_for("turn_interrupted")

    run(tmp_path, script(declined=steps, cancelled=steps[:1]), body, workers=0)


def test_a_question_that_nobody_answers_ends_the_turn_by_itself(tmp_path: Path) -> None:
    steps = [{**patch(FIX), **SPENDS}, say("It is half done.")]

    async def body(service: Service) -> None:
        await service.start_worker(**SOON, PATCHYARD_QUESTION_EXPIRY_S="2")
        task = await service.create(asking(buggy_repository(tmp_path), "expired", tokens=1_000))
        await check_ended(service, task, "expired")
        assert "turn_parked" in [event.type for event in await task.events()]

    run(tmp_path, script(expired=steps), body, workers=0)


async def check_ended(service: Service, task: Task, decision: str) -> None:
    events = await task.ended()
    (end,) = [event for event in events if isinstance(event, TurnFailed)]
    assert end.error.code is ErrorCode.BUDGET_EXCEEDED
    assert end.model_requests == 2, "a last answer is still given"
    assert [event.patch.files for event in events if isinstance(event, PatchProduced)] == [1]
    assert [event.decision for event in events if isinstance(event, RequestResolved)] == [decision]
    view = await service.task_view(task)
    assert (view.status, view.reason) == (TaskStatus.FAILED, "budget_exceeded")


def test_a_worker_that_dies_while_it_asks_and_one_that_dies_after_the_answer(tmp_path: Path) -> None:
    long = {"items": [{"call": "exec_command", "arguments": {"cmd": "sleep 300", "yield_time_ms": 30_000}}]}
    scripted = script(dies=[LOOK, long, patch(FIX), say("Fixed.")])

    async def body(service: Service) -> None:
        first = await service.start_worker()
        task = await service.create(asking(buggy_repository(tmp_path), "dies", model_requests=1))
        question = question_of(await task.wait_for("budget_request"))
        await _killed(first)
        receipt = await service.queue.submit(_submission(task, accept(question, **MORE.model_dump(exclude_none=True))))
        again = await service.queue.submit(_submission(task, accept(question)))
        assert (again.duplicate, again.submission_id) == (True, receipt.submission_id)
        await lose(service.queue, task.thread_id)
        second = await service.start_worker()
        await task.wait_for("item_started", count=3)
        await _killed(second)
        await lose(service.queue, task.thread_id)
        await service.start_worker()
        events = await task.ended()
        kinds = [event.type for event in events]
        assert (kinds.count("budget_request"), kinds.count("request_resolved")) == (1, 1)
        assert kinds.count("turn_recovered") >= 2
        assert kinds.count("turn_completed") == 1
        assert {line.turn_id for line in await task.lines() if line.turn_id} == {task.turn_id}
        await gone(service, task)

    run(tmp_path, scripted, body, workers=0)


async def _killed(worker: Any) -> None:
    worker.send_signal(signal.SIGKILL)
    await asyncio.to_thread(worker.wait, WAIT_S)


def _submission(task: Task, op: Any) -> Submission:
    from patchyard.protocol.ids import new_id

    return Submission(id=new_id(), tenant_id="default", thread_id=task.thread_id, op=op, idempotency_key="more", submitted_at=1)


def test_input_wakes_a_waiting_turn_which_asks_on(tmp_path: Path) -> None:
    scripted = script(steered=[LOOK, say("Done, with tests.")])

    async def body(service: Service) -> None:
        await service.start_worker(**SOON)
        task = await service.create(asking(None, "steered", model_requests=1))
        question = question_of(await task.wait_for("turn_parked"))
        await task.ask(TurnInput(items=(TextInput(text="add tests too"),)))
        await task.wait_for("turn_parked", count=2)
        await task.ask(accept(question, model_requests=10))
        events = await task.ended()
        assert [event.type for event in events if event.type == "budget_request"] == ["budget_request"]
        assert events[-1].type == "turn_completed"
        last = service.model.log.all()[-1]
        assert "add tests too" in str(last.input)

    run(tmp_path, scripted, body, workers=0)
