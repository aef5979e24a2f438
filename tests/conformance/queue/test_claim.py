"""Who gets which thread, and how a lease is kept and lost."""

import asyncio
from collections import Counter

import pytest

from patchyard.adapters.queue import QueueThreadChannel, ThreadStatus
from patchyard.agent.ports import LeaseLost
from patchyard.protocol import ops
from patchyard.protocol.ids import new_id
from tests.conformance.queue.kit import Kit, MakeBackend, completed, kit, say, started


async def _order(k: Kit, count: int) -> list[str]:
    return [(await k.claim()).tenant_id for _ in range(count)]


def test_a_claim_brings_all_that_a_worker_needs(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            thread = new_id()
            turn = (await k.submit(thread, say(), task="task-1")).submission_id
            claim = await k.claim("w7")
            assert (claim.thread_id, claim.tenant_id, claim.task_id) == (thread, "default", "task-1")
            assert (claim.fence, claim.next_ordinal, claim.active_turn_id) == (1, 0, turn)
            assert (claim.segment, claim.reason, claim.crashes, claim.spec_json) == (1, "new", 0, "{}")
            state = await k.core.thread_state(thread)
            assert state is not None
            assert (state.status, state.worker, state.fence) == (ThreadStatus.RUNNING, "w7", 1)
            assert await k.core.claim("w8") is None

    asyncio.run(main())


def test_tenants_take_turns_however_much_one_of_them_submits(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            for tenant, threads in (("a", 12), ("b", 3), ("c", 3)):
                for _ in range(threads):
                    await k.submit(new_id(), say(), tenant=tenant)
            assert "".join(await _order(k, 18)) == "abcabcabcaaaaaaaaa"

    asyncio.run(main())


def test_a_tenant_that_comes_back_for_each_thread_does_not_starve_the_others(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            for _ in range(10):
                await k.submit(new_id(), say(), tenant="b")
            order = []
            for _ in range(10):
                await k.submit(new_id(), say(), tenant="a")
                order += await _order(k, 1)
            assert Counter(order) == {"a": 5, "b": 5}

    asyncio.run(main())


def test_a_tenant_that_was_away_gets_no_credit_for_it(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            for _ in range(10):
                await k.submit(new_id(), say(), tenant="a")
            await _order(k, 6)
            for _ in range(4):
                await k.submit(new_id(), say(), tenant="b")
            assert Counter(await _order(k, 4)) == {"a": 2, "b": 2}

    asyncio.run(main())


def test_priority_decides_within_a_tenant_and_age_among_equals(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            threads = {}
            for name, priority in (("normal", 5), ("low", 9), ("urgent", 1)):
                threads[new_id()] = name
                await k.submit(list(threads)[-1], say(), priority=priority)
            assert [threads[(await k.claim()).thread_id] for _ in range(3)] == ["urgent", "normal", "low"]

    asyncio.run(main())


def test_a_tenant_at_its_cap_waits_until_one_of_its_turns_ends(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend, tenant_cap=2) as k:
            for _ in range(3):
                await k.submit(new_id(), say(), tenant="a")
            await k.submit(new_id(), say(), tenant="b")
            first, second, third = [await k.claim() for _ in range(3)]
            assert [c.tenant_id for c in (first, second, third)] == ["a", "b", "a"]
            assert await k.core.claim("w") is None
            channel = QueueThreadChannel(k.core, first)
            received = await channel.receive()
            await channel.finish_turn([completed()], turn_id=received.id)
            assert (await k.claim()).tenant_id == "a"

    asyncio.run(main())


def test_a_capped_repository_does_not_hold_up_the_tenants_other_work(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend, repository_cap=1) as k:
            for _ in range(70):
                await k.submit(new_id(), say(), repository="big")
            other = new_id()
            await k.submit(other, say(), repository="small")
            foreign = new_id()
            await k.submit(foreign, say(), repository="big", tenant="b")
            claimed = {(await k.claim()).thread_id for _ in range(3)}
            assert {other, foreign} < claimed
            assert await k.core.claim("w") is None

    asyncio.run(main())


def test_caps_of_a_dead_worker_are_free_again(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend, tenant_cap=1) as k:
            await k.submit(new_id(), say())
            await k.submit(new_id(), say())
            lost = await k.claim()
            await k.lose(lost.thread_id)
            assert await k.core.claim("w2") is not None

    asyncio.run(main())


def test_a_claim_whose_answer_got_lost_is_given_again(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            await k.submit(new_id(), say())
            args = {"worker": "w", "ttl": 30_000, "token": "same", "tenant_cap": 9, "repository_cap": 9}
            first = await k.server.run("claim", args)
            assert await k.server.run("claim", args) == first

    asyncio.run(main())


def test_beat_keeps_leases_and_names_the_lost_ones(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            for _ in range(2):
                await k.submit(new_id(), say())
            kept, left = await k.claim(), await k.claim()
            await k.expire(kept.thread_id, left.thread_id)
            assert await k.core.beat("w1", {kept.thread_id: kept.fence}) == []
            assert await k.reap() == [left.thread_id]
            held = {kept.thread_id: kept.fence, left.thread_id: left.fence}
            assert await k.core.beat("w1", held) == [left.thread_id]
            assert await k.core.beat("w1", {}) == []

    asyncio.run(main())


def test_a_reaped_turn_is_recovered_under_its_own_id_and_the_zombie_writes_nothing(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            await k.lose(run.thread)
            claim = await k.claim("w2")
            assert (claim.active_turn_id, claim.segment, claim.reason, claim.crashes) == (run.turn, 2, "worker_lost", 1)
            assert (claim.fence, claim.next_ordinal) == (3, 1)
            for write in (
                run.channel.commit([started()], turn_id=run.turn),
                run.channel.finish_turn([completed()], turn_id=run.turn),
                run.channel.park([], turn_id=run.turn),
                run.channel.receive(),
            ):
                with pytest.raises(LeaseLost):
                    await write
            zombie = QueueThreadChannel(k.core, claim)
            zombie.fence = run.channel.fence
            with pytest.raises(LeaseLost):
                await zombie.commit([started()], turn_id=run.turn)
            assert await k.event_types(run.thread) == ["turn_started"]

    asyncio.run(main())


def test_a_reaped_thread_without_work_is_idle(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            thread = new_id()
            await k.submit(thread, ops.ThreadSettings(overrides=ops.TurnOverrides(model="x")))
            channel = await k.channel()
            await channel.commit([], consumed=[(await channel.receive()).id])
            await k.lose(thread)
            state = await k.core.thread_state(thread)
            assert state is not None
            assert state.status == ThreadStatus.IDLE
            assert await k.core.claim("w") is None

    asyncio.run(main())


def test_a_turn_that_began_under_the_last_ones_lease_is_recovered_too(backend: MakeBackend) -> None:
    async def main() -> None:
        async with kit(backend) as k:
            run = await k.running()
            await k.submit(run.thread, ops.ThreadSettings(overrides=ops.TurnOverrides()))
            assert await run.channel.finish_turn([completed()], turn_id=run.turn)
            second = (await k.submit(run.thread, say("next"))).submission_id
            await k.lose(run.thread)
            claim = await k.claim("w2")
            assert (claim.active_turn_id, claim.segment, claim.reason, claim.crashes) == (second, 2, "worker_lost", 1)

    asyncio.run(main())
