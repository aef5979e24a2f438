"""What a submission is answered, decided by the thread's state alone."""

import asyncio

import pytest

from patchyard.adapters.queue import QueueFull, ThreadClosedError, ThreadNotFound, ThreadStatus
from patchyard.protocol import ops
from patchyard.protocol.errors import NotSubmittedReason as Why
from patchyard.protocol.ids import new_id
from tests.conformance.queue.kit import Kit, MakeBackend, completed, kit, refused, say


def test_first_input_starts_a_turn_and_the_next_one_steers_it(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            thread = new_id()
            first = await k.submit(thread, say(), task="task-1")
            second = await k.submit(thread, say("more"))
            assert first.admission == ops.Started(turn_id=first.submission_id)
            assert second.admission == ops.Steered(turn_id=first.submission_id)
            state = await k.core.thread_state(thread)
            assert state is not None
            assert (state.status, state.active_turn_id, state.waiting) == (ThreadStatus.QUEUED, first.submission_id, 2)
            assert (state.tenant_id, state.task_id, state.spec_json, state.title) == ("default", "task-1", "{}", "a title")
            assert (state.next_ordinal, state.trimmed_through, state.worker, state.container) == (0, None, None, None)

    asyncio.run(main())


def test_a_repeated_key_gets_the_first_answer_even_after_the_turn(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running(key="k")
            await run.channel.finish_turn([completed()], turn_id=run.turn)
            again = await k.submit(run.thread, say(), key="k")
            assert again == ops.SubmissionReceipt(
                submission_id=run.turn, admission=ops.Started(turn_id=run.turn), duplicate=True
            )
            assert await k.core.claim("w") is None

    asyncio.run(main())


def test_the_same_submission_sent_twice_is_one(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            thread = new_id()
            await k.submit(thread, say())
            steer = k.submission(thread, say("once"))
            first, second = await k.core.submit(steer), await k.core.submit(steer)
            assert first.admission == second.admission
            assert (first.duplicate, second.duplicate) == (False, True)
            state = await k.core.thread_state(thread)
            assert state is not None
            assert state.waiting == 2

    asyncio.run(main())


def test_a_refused_input_leaves_its_key_free(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            not_now = await k.submit(run.thread, say(mode=ops.StartIfIdle()), key="k")
            assert not_now.admission == refused(Why.NOT_IDLE, run.turn)
            await run.channel.finish_turn([completed()], turn_id=run.turn)
            now = await k.submit(run.thread, say(mode=ops.StartIfIdle()), key="k")
            assert now.admission == ops.Started(turn_id=now.submission_id)

    asyncio.run(main())


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
SAME_SCHEMA = {"properties": {"b": {"type": "string"}, "a": {"type": "string"}}, "type": "object"}
BLANK = ops.TurnInput(items=(ops.TextInput(text=" \n"),))


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        (say(mode=ops.Steer(expected_turn_id="x")), Why.NO_ACTIVE_TURN),
        (ops.TurnInput(items=(), mode=ops.Steer(expected_turn_id="x")), Why.NO_ACTIVE_TURN),
        (BLANK, Why.EMPTY_INPUT),
        (ops.TurnInput(items=()), Why.EMPTY_INPUT),
        (ops.Interrupt(), Why.NO_ACTIVE_TURN),
        (ops.ExecApproval(approval_id="a", decision=ops.ApprovalDecision.ACCEPT), Why.NO_ACTIVE_TURN),
        (ops.BudgetAnswer(request_id="b", decision="accept"), Why.NO_ACTIVE_TURN),
        (ops.TurnSettings(turn_id="x", overrides=ops.TurnOverrides()), Why.NO_ACTIVE_TURN),
    ],
)
def test_what_an_idle_thread_refuses(backend: MakeBackend, op: ops.Op, reason: Why) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            assert (await k.submit(new_id(), op)).admission == refused(reason)
            assert await k.core.claim("w") is None

    asyncio.run(main())


def test_an_idle_thread_takes_images_and_blank_text(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            op = ops.TurnInput(items=(ops.TextInput(text=""), ops.ImageInput(url="https://example.org/a.png")))
            assert (await k.submit(new_id(), op)).admission.type == "started"

    asyncio.run(main())


async def _answers(k: Kit, thread: str, *given: ops.Op) -> list[str]:
    admissions = [(await k.submit(thread, op)).admission for op in given]
    return [a.reason if isinstance(a, ops.NotSubmitted) else a.type for a in admissions]


def test_checks_come_in_the_decided_order_on_a_regular_turn(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            thread = new_id()
            turn = (await k.submit(thread, say(output_schema=SCHEMA))).submission_id
            wrong, right = ops.Steer(expected_turn_id="x"), ops.Steer(expected_turn_id=turn)
            empty_and_other = ops.TurnInput(items=(), mode=wrong, output_schema={"type": "string"})
            assert await _answers(
                k,
                thread,
                say(mode=ops.StartIfIdle()),
                empty_and_other,
                empty_and_other.model_copy(update={"mode": right}),
                say(mode=right, output_schema={"type": "string"}),
                say(output_schema={"type": "string"}),
                say(mode=right, output_schema=SAME_SCHEMA),
                say(mode=right),
                say(),
                ops.Review(),
                ops.Compact(),
                ops.RunUserShellCommand(command="ls"),
                ops.TurnSettings(turn_id="x", overrides=ops.TurnOverrides()),
                ops.TurnSettings(turn_id=turn, overrides=ops.TurnOverrides()),
                ops.InterAgentCommunication(author_thread_id="t", message="m", trigger_turn=True),
                ops.InterAgentCommunication(author_thread_id="t", message="m"),
                ops.ThreadSettings(overrides=ops.TurnOverrides()),
                ops.Interrupt(turn_id="x"),
            ) == [
                Why.NOT_IDLE,
                Why.EXPECTED_TURN_MISMATCH,
                Why.EMPTY_INPUT,
                Why.OUTPUT_SCHEMA_MISMATCH,
                Why.OUTPUT_SCHEMA_MISMATCH,
                "steered",
                "steered",
                "steered",
                Why.NOT_IDLE,
                "applied",
                "applied",
                Why.EXPECTED_TURN_MISMATCH,
                "applied",
                "steered",
                "applied",
                "applied",
                Why.EXPECTED_TURN_MISMATCH,
            ]

    asyncio.run(main())


@pytest.mark.parametrize("op", [ops.Review(), ops.Compact()])
def test_review_and_compaction_can_not_be_steered(backend: MakeBackend, op: ops.Op) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            thread = new_id()
            turn = (await k.submit(thread, op)).submission_id
            steer = ops.TurnInput(items=(), mode=ops.Steer(expected_turn_id=turn))
            assert await _answers(
                k, thread, say(), steer, ops.InterAgentCommunication(author_thread_id="t", message="m", trigger_turn=True)
            ) == [Why.ACTIVE_TURN_NOT_STEERABLE, Why.ACTIVE_TURN_NOT_STEERABLE, "applied"]

    asyncio.run(main())


def test_a_full_queue_keeps_places_for_control(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            for _ in range(512):
                assert (await k.submit(run.thread, say("steer"))).admission.type == "steered"
            with pytest.raises(QueueFull) as ordinary:
                await k.submit(run.thread, say("one more"))
            assert ordinary.value.retry_after_s > 0
            assert ordinary.value.info.retryable
            more = ops.BudgetAnswer(request_id="b", decision="accept")
            for _ in range(32):
                assert (await k.submit(run.thread, ops.Interrupt())).admission == ops.Applied()
                assert (await k.submit(run.thread, more)).admission == ops.Applied()
            with pytest.raises(QueueFull):
                await k.submit(run.thread, ops.Interrupt())

    asyncio.run(main())


def test_a_flooded_queued_thread_can_be_interrupted(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            thread = new_id()
            await k.submit(thread, say())
            for _ in range(511):
                await k.submit(thread, say("steer"))
            assert (await k.submit(thread, ops.Interrupt())).admission == ops.Applied()
            state = await k.core.thread_state(thread)
            assert state is not None
            assert (state.status, state.waiting, state.active_turn_id) == (ThreadStatus.IDLE, 0, None)

    asyncio.run(main())


def test_unknown_threads_and_those_of_others_are_not_found(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            with pytest.raises(ThreadNotFound):
                await k.core.submit(k.submission(new_id(), say()))
            thread = new_id()
            await k.submit(thread, say(), key="secret", tenant="one")
            with pytest.raises(ThreadNotFound):
                await k.submit(thread, say(), key="secret", tenant="two")
            assert await k.core.thread_state(new_id()) is None

    asyncio.run(main())


def test_a_closed_thread_takes_nothing_but_repeats_its_answers(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            thread = new_id()
            await k.submit(thread, say(), key="k")
            await k.submit(thread, ops.Shutdown())
            with pytest.raises(ThreadClosedError):
                await k.submit(thread, say())
            with pytest.raises(ThreadClosedError):
                await k.submit(thread, ops.Shutdown())
            assert (await k.submit(thread, say(), key="k")).duplicate

    asyncio.run(main())
