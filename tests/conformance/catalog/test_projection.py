"""Threads' records in the catalog, on SQLite and PostgreSQL."""

import asyncio
from collections.abc import Awaitable, Callable

from patchyard.adapters.catalog import Catalog, Projected, ProjectionGap
from patchyard.protocol.budgets import BudgetRequest
from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.protocol.events import (
    ExecApprovalRequest,
    RequestResolved,
    TaskStatusChanged,
    ThreadClosed,
    TokenCount,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnParked,
    TurnRecovered,
    VerificationStarted,
)
from patchyard.protocol.ids import new_id
from patchyard.protocol.model_items import TokenUsage
from patchyard.protocol.ops import ApprovalDecision
from patchyard.protocol.policies import BudgetLimits
from patchyard.protocol.tasks import TaskStatus, TaskView, TurnStatus
from tests.rollout_lines import T0, TRACE, USAGE, Thread, spec, verified_task


def using(url: str, work: Callable[[Catalog], Awaitable[None]]) -> None:
    async def run() -> None:
        catalog = Catalog(url)
        try:
            await catalog.migrate()
            await work(catalog)
        finally:
            await catalog.close()

    asyncio.run(run())


async def create(catalog: Catalog, thread: Thread) -> TaskView:
    view = TaskView(
        id=thread.task_id,
        tenant_id=thread.tenant_id,
        thread_id=thread.thread_id,
        status=TaskStatus.QUEUED,
        reason="submitting",
        title="A title",
        spec=spec(),
        created_at=T0,
    )
    await catalog.create_task(view, "key")
    await catalog.mark_queued(thread.tenant_id, thread.task_id)
    return view


async def status(catalog: Catalog, thread: Thread) -> tuple[str, str]:
    task = await catalog.get_task(thread.tenant_id, thread.task_id)
    return task.status.value, task.reason


def test_a_thread_of_one_verified_turn(url: str) -> None:
    async def work(catalog: Catalog) -> None:
        thread = verified_task()
        created = await create(catalog, thread)
        result = await catalog.apply_lines("default", thread.thread_id, thread.lines)
        assert result == Projected(applied_through=len(thread.lines) - 1)
        task = await catalog.get_task("default", thread.task_id)
        assert task.verify is not None
        assert task.patch is not None
        assert task == created.model_copy(
            update={
                "status": TaskStatus.SUCCEEDED,
                "reason": "completed",
                "turn_id": thread.lines[1].turn_id,
                "started_at": T0 + 10,
                "completed_at": thread.lines[-1].timestamp,
                "verified": True,
                "verify": task.verify,
                "patch": task.patch,
                "usage": USAGE,
                "cost_usd": 0.5,
                "final_message": "Done\ufffd.",
                "trace_id": TRACE,
            }
        )
        assert (task.verify.passed, task.patch.artefact_id) == (True, "p1")
        summary = await catalog.get_thread("default", thread.thread_id)
        assert (summary.turns, summary.last_turn_status, summary.usage) == (1, TurnStatus.COMPLETED, USAGE)
        assert (summary.task_id, summary.model, summary.closed) == (thread.task_id, "gpt-5.5", False)
        (turn,) = await catalog.list_turns("default", thread.thread_id)
        assert (turn.status, turn.model_requests, turn.tool_calls, turn.cost_usd) == (TurnStatus.COMPLETED, 1, 1, 0.5)

    using(url, work)


def test_lines_again_and_in_any_batches_change_nothing(url: str) -> None:
    async def work(catalog: Catalog) -> None:
        whole, pieces = verified_task(), verified_task()
        await catalog.apply_lines("default", whole.thread_id, whole.lines)
        for start in range(0, len(pieces.lines), 3):
            batch = pieces.lines[max(start - 2, 0) : start + 3]
            assert isinstance(await catalog.apply_lines("default", pieces.thread_id, batch), Projected)
        await catalog.apply_lines("default", pieces.thread_id, pieces.lines)
        await catalog.apply_lines("default", pieces.thread_id, [])
        own = {"id", "thread_id", "turn_id", "spec"}
        left = (await catalog.get_task("default", whole.task_id)).model_dump(exclude=own)
        right = (await catalog.get_task("default", pieces.task_id)).model_dump(exclude=own)
        assert left == right
        assert await catalog.applied_through("default", pieces.thread_id) == len(pieces.lines) - 1
        assert await catalog.applied_through("default", new_id()) == -1

    using(url, work)


def test_several_projectors_at_once_apply_each_line_once(url: str) -> None:
    async def work(catalog: Catalog) -> None:
        other = Catalog(url)
        thread = verified_task()
        await create(catalog, thread)
        await asyncio.gather(
            *((catalog, other)[n % 2].apply_lines("default", thread.thread_id, thread.lines[: 3 + n]) for n in range(14))
        )
        await catalog.apply_lines("default", thread.thread_id, thread.lines)
        assert (await catalog.get_thread("default", thread.thread_id)).cost_usd == 0.5
        await other.close()

    using(url, work)


def test_a_gap_is_told_and_a_reindex_repairs_it(url: str) -> None:
    async def work(catalog: Catalog) -> None:
        thread = verified_task()
        await create(catalog, thread)
        await catalog.apply_lines("default", thread.thread_id, thread.lines[:4])
        before = await catalog.get_task("default", thread.task_id)
        assert await catalog.apply_lines("default", thread.thread_id, thread.lines[6:]) == ProjectionGap(4, 6)
        assert await catalog.apply_lines("default", thread.thread_id, thread.lines[4:6] + thread.lines[7:]) == ProjectionGap(
            6, 7
        )
        assert await catalog.get_task("default", thread.task_id) == before
        assert await catalog.reindex_thread("default", thread.thread_id, thread.lines[2:]) == ProjectionGap(0, 2)
        assert await catalog.get_task("default", thread.task_id) == before
        result = await catalog.reindex_thread("default", thread.thread_id, thread.lines)
        assert result == Projected(applied_through=len(thread.lines) - 1)
        once = await catalog.get_task("default", thread.task_id)
        assert (once.status, once.title) == (TaskStatus.SUCCEEDED, "A title")
        await catalog.reindex_thread("default", thread.thread_id, iter(thread.lines))
        assert await catalog.get_task("default", thread.task_id) == once
        assert (await catalog.get_thread("default", thread.thread_id)).cost_usd == 0.5

    using(url, work)


def test_a_lost_catalog_comes_back_from_the_rollout(url: str) -> None:
    async def work(catalog: Catalog) -> None:
        thread = verified_task()
        await catalog.reindex_thread("default", thread.thread_id, thread.lines)
        task = await catalog.get_task("default", thread.task_id)
        assert (task.status, task.title, task.spec, task.created_at) == (TaskStatus.SUCCEEDED, "Fix the bug", spec(), T0)
        assert (await catalog.list_tasks("default", query="fix")).data == (task,)
        assert list(await catalog.stale_submitting(0)) == []

    using(url, work)


def test_a_task_is_what_its_events_say(url: str) -> None:
    async def work(catalog: Catalog) -> None:
        thread = Thread()
        turn = new_id(T0)
        await create(catalog, thread)

        async def after(*payloads: object) -> tuple[str, str]:
            await catalog.apply_lines("default", thread.thread_id, thread.add(*payloads, turn=turn))
            return await status(catalog, thread)

        def ask(number: int) -> ExecApprovalRequest:
            return ExecApprovalRequest(approval_id=f"a{number}", item_id="i", command=("ls",), cwd="/")

        def answer(number: int) -> RequestResolved:
            return RequestResolved(request_id=f"a{number}", decision=ApprovalDecision.ACCEPT)

        error = ErrorInfo.of(ErrorCode.BUDGET_EXCEEDED, "Too much.")
        assert await status(catalog, thread) == ("queued", "queued")
        assert await after(thread.meta(), thread.started()) == ("running", "running")
        assert await after(ask(1), ask(2)) == ("waiting", "approval")
        assert await after(answer(1)) == ("waiting", "approval")
        assert await after(answer(2)) == ("running", "running")
        spent = BudgetRequest(request_id="b", budget="tokens", used=9, limit=9, proposed=BudgetLimits(tokens=18))
        assert await after(spent) == ("waiting", "budget")
        assert await after(TurnParked(reason="budget")) == ("waiting", "budget")
        assert await after(TurnRecovered(segment=1, reason="unparked")) == ("waiting", "budget")
        more = RequestResolved(request_id="b", decision=ApprovalDecision.ACCEPT, budgets=BudgetLimits(tokens=18))
        assert await after(more) == ("running", "running")
        assert await after(TurnParked(reason="user_input")) == ("waiting", "user_input")
        assert await after(TurnRecovered(segment=2, reason="unparked")) == ("running", "running")
        assert await after(TurnParked(reason="agents")) == ("waiting", "agents")
        assert await after(TurnRecovered(segment=3, reason="unparked")) == ("running", "running")
        assert await after(VerificationStarted(round=1, command="true")) == ("verifying", "verifying")
        assert await after(TurnFailed(error=error, usage=USAGE, cost_usd=1.0)) == ("failed", "budget_exceeded")
        task = await catalog.get_task("default", thread.task_id)
        assert (task.error, task.usage, task.cost_usd, task.completed_at) == (error, USAGE, 1.0, thread.lines[-1].timestamp)

    using(url, work)


def test_a_follow_up_turn_reopens_the_task_and_sums_are_over_turns(url: str) -> None:
    async def work(catalog: Catalog) -> None:
        thread = verified_task()
        await create(catalog, thread)
        turn = new_id(T0 + 9)
        thread.add(thread.started(), turn=turn)
        await catalog.apply_lines("default", thread.thread_id, thread.lines)
        task = await catalog.get_task("default", thread.task_id)
        assert (task.status, task.completed_at, task.turn_id) == (TaskStatus.RUNNING, None, turn)
        total = TokenUsage(input_tokens=300, output_tokens=60, total_tokens=360)
        end = TurnCompleted(usage=USAGE, cost_usd=0.25, model_requests=2, tool_calls=0, duration_ms=1, last_agent_message="B")
        new = thread.add(TokenCount(last=USAGE, total=total), end, ThreadClosed(), turn=turn)
        await catalog.apply_lines("default", thread.thread_id, new)
        task = await catalog.get_task("default", thread.task_id)
        assert (task.status, task.usage, task.cost_usd, task.final_message) == (TaskStatus.SUCCEEDED, total, 0.75, "B")
        summary = await catalog.get_thread("default", thread.thread_id)
        assert (summary.turns, summary.closed, summary.last_turn_id) == (2, True, turn)

    using(url, work)


def test_a_task_that_was_cancelled_before_any_worker_came(url: str) -> None:
    async def work(catalog: Catalog) -> None:
        thread = Thread()
        await create(catalog, thread)
        thread.add(TurnInterrupted(usage=TokenUsage()), turn=new_id(T0))
        await catalog.apply_lines("default", thread.thread_id, thread.lines)
        task = await catalog.get_task("default", thread.task_id)
        assert (task.status, task.reason, task.started_at) == (TaskStatus.CANCELLED, "interrupted", None)
        assert list(await catalog.list_turns("default", thread.thread_id)) == []

    using(url, work)


def test_the_status_that_the_worker_told_wins_over_the_turns_end(url: str) -> None:
    async def work(catalog: Catalog) -> None:
        told = TaskStatusChanged(status=TaskStatus.FAILED, reason="verification_failed")
        end = TurnCompleted(usage=USAGE, model_requests=1, tool_calls=0, duration_ms=1)
        for order in ((told, end), (end, told)):
            thread = Thread()
            turn = new_id(T0)
            thread.add(thread.meta(), thread.started(), *order, turn=turn)
            await catalog.apply_lines("default", thread.thread_id, thread.lines)
            assert await status(catalog, thread) == ("failed", "verification_failed")

    using(url, work)


def test_tenants_with_the_same_thread_id_do_not_meet(url: str) -> None:
    async def work(catalog: Catalog) -> None:
        mine = verified_task()
        await create(catalog, mine)
        await catalog.apply_lines("default", mine.thread_id, mine.lines)
        before = await catalog.get_task("default", mine.task_id)
        foreign = Thread(thread_id=mine.thread_id, tenant_id="other")
        foreign.add(foreign.started(), ThreadClosed(), turn=new_id(T0))
        await catalog.apply_lines("other", foreign.thread_id, foreign.lines)
        assert await catalog.get_task("default", mine.task_id) == before
        assert not (await catalog.get_thread("default", mine.thread_id)).closed

    using(url, work)


def test_costs_that_are_counted_by_response_are_counted_once(url: str) -> None:
    async def work(catalog: Catalog) -> None:
        thread = Thread()
        await create(catalog, thread)
        thread.add(thread.meta())
        spent = 0.0
        for number in range(2):
            turn = new_id(T0 + number)
            thread.add(thread.started(), turn=turn)
            for _ in range(2):
                spent += 0.25
                thread.add(TokenCount(last=USAGE, total=USAGE, cost_usd=spent), turn=turn)
            running = thread.lines[-1]
            await catalog.apply_lines("default", thread.thread_id, thread.lines)
            assert (await catalog.get_task("default", thread.task_id)).cost_usd == spent
            assert running.turn_id == turn
            end = TurnCompleted(usage=USAGE, cost_usd=0.5, model_requests=2, tool_calls=0, duration_ms=1)
            await catalog.apply_lines("default", thread.thread_id, thread.add(end, turn=turn))
        assert (await catalog.get_task("default", thread.task_id)).cost_usd == 1.0
        assert [turn.cost_usd for turn in await catalog.list_turns("default", thread.thread_id)] == [0.5, 0.5]

    using(url, work)


def test_odd_texts_and_foreign_ids_stop_nothing(url: str) -> None:
    async def work(catalog: Catalog) -> None:
        thread, fork = verified_task(), Thread()
        await create(catalog, thread)
        turn = new_id(T0)
        fork.add(fork.meta().model_copy(update={"task_id": thread.task_id, "tenant_id": "other"}))
        fork.add(fork.started(model="m\0" * 500), turn=turn)
        fork.add(TaskStatusChanged(status=TaskStatus.FAILED, reason="long \0" * 500), turn=turn)
        for one in (thread, fork):
            result = await catalog.apply_lines("default", one.thread_id, one.lines)
            assert isinstance(result, Projected)
        thread.add(TaskStatusChanged(status=TaskStatus.FAILED, reason="long \0" * 500))
        await catalog.apply_lines("default", thread.thread_id, thread.lines)
        task = await catalog.get_task("default", thread.task_id)
        assert (task.thread_id, task.status, len(task.reason)) == (thread.thread_id, TaskStatus.FAILED, 200)
        assert (await catalog.list_tasks("other")).data == ()

    using(url, work)
