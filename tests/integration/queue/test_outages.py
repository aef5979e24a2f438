"""The server dies, comes back, forgets its scripts, or is not fit for the job."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

from patchyard.adapters.queue import QueueCore, QueueThreadChannel, QueueUnavailable, ThreadRegistration
from patchyard.adapters.queue._redis import RedisBackend
from patchyard.adapters.streams import EventHub
from patchyard.protocol.ids import new_id
from tests.conformance.queue.kit import WAIT_S, Kit, Unreliable, completed, delta, kit, say, started, until
from tests.servers import RedisServer


@asynccontextmanager
async def served(server: RedisServer, **settings: Any) -> AsyncIterator[Kit]:
    async with kit(lambda: RedisBackend(server.url), **settings) as k:
        yield k


async def restart(server: RedisServer) -> None:
    server.kill()
    await asyncio.to_thread(server.start)


def test_commits_go_on_over_kills_of_the_server(server: RedisServer) -> None:
    async def main() -> None:
        async with served(server) as k:
            run = await k.running()
            hub = EventHub(k.core)
            await hub.open()
            stream = hub.subscribe(run.thread)
            seen: list[int] = []

            async def watch() -> None:
                async for frame in stream:
                    if frame.ordinal is not None:
                        seen.append(frame.ordinal)
                    if frame.type == "turn_completed":
                        return

            watching = asyncio.ensure_future(watch())
            committed = 0
            stop = asyncio.Event()

            async def write() -> None:
                nonlocal committed
                while not stop.is_set():
                    run.channel.live(delta(f"{committed} "), turn_id=run.turn)
                    await run.channel.commit([started(str(committed))] * 2, turn_id=run.turn)
                    committed += 2

            writing = asyncio.ensure_future(write())
            for _ in range(3):
                before = committed
                await until(lambda before=before: _true(committed > before + 20))
                await restart(server)
            before = committed
            await until(lambda: _true(committed > before + 20))
            stop.set()
            await writing
            assert await run.channel.finish_turn([completed()], turn_id=run.turn)
            async with asyncio.timeout(WAIT_S):
                await watching
            await hub.close()
            lines = await k.core.read_lines(run.thread, after=None, limit=100_000)
            assert [line.ordinal for line in lines] == list(range(committed + 2)) == seen
            models = [json.loads(line.json)["payload"].get("model") for line in lines[1:-1]]
            assert models == [str(n) for n in range(0, committed, 2) for _ in range(2)]

    asyncio.run(main())


async def _true(value: object) -> bool:
    return bool(value)


def test_the_reaper_gives_workers_one_ttl_after_a_restart(server: RedisServer) -> None:
    async def main() -> None:
        async with served(server, lease_ttl_s=3600) as k:
            run = await k.running()
            with redis.Redis.from_url(server.url) as client:
                client.zadd("py:{0}:leases", {run.thread: 1})
            await restart(server)
            assert (await k.core.reap()).reaped == []
            assert await k.core.beat("w1", {run.thread: run.channel.fence}) == []
            await run.channel.commit([started()], turn_id=run.turn)

    asyncio.run(main())


def test_a_server_that_forgot_its_scripts_gets_them_again(server: RedisServer) -> None:
    async def main() -> None:
        async with served(server) as k:
            thread = new_id()
            await k.submit(thread, say())
            with redis.Redis.from_url(server.url) as client:
                client.script_flush()
            assert (await k.submit(thread, say())).admission.type == "steered"

    asyncio.run(main())


def test_without_a_server_every_call_says_so_soon(server: RedisServer) -> None:
    async def main() -> None:
        async with served(server) as k:
            run = await k.running()
            server.kill()
            begin = time.monotonic()
            for call in (
                k.core.submit(k.submission(run.thread, say())),
                k.core.claim("w"),
                k.core.beat("w", {run.thread: 1}),
                k.core.thread_state(run.thread),
                k.core.read_fire("0-0"),
                k.core.fire_position(),
                k.core.check(),
            ):
                with pytest.raises(QueueUnavailable, match="doctor"):
                    await call
            assert time.monotonic() - begin < WAIT_S
            missing = QueueCore(server.url)
            with pytest.raises(QueueUnavailable):
                await missing.open()
            await missing.close()

    asyncio.run(main())


def test_two_workers_that_race_for_threads_never_share_one(server: RedisServer) -> None:
    async def main() -> None:
        async with served(server) as k:
            threads = {new_id() for _ in range(60)}
            for thread in threads:
                await k.submit(thread, say())
            other = QueueCore(server.url)
            await other.open()
            claims = await asyncio.gather(*(core.claim("w") for core in (k.core, other) * 40))
            await other.close()
            taken = [claim.thread_id for claim in claims if claim is not None]
            assert sorted(taken) == sorted(threads)

    asyncio.run(main())


def test_answers_that_get_lost_anywhere_change_nothing(server: RedisServer) -> None:
    """Every script of a whole turn loses its first answer once."""

    async def main() -> None:
        backend = Unreliable(RedisBackend(server.url))
        core = QueueCore("test:", backend=backend)
        await core.open()
        k = Kit(core, backend)
        submission = k.submission(new_id(), say())
        backend.lose = 1
        with pytest.raises(QueueUnavailable):
            await core.submit(submission, registration=ThreadRegistration())
        receipt = await core.submit(submission, registration=ThreadRegistration())
        assert (receipt.submission_id, receipt.duplicate) == (submission.id, True)
        claim = await core.claim("w")
        assert claim is not None
        channel = QueueThreadChannel(core, claim)
        backend.lose = 1
        assert (await channel.receive()).id == submission.id
        backend.lose = 1
        await channel.commit([started()], turn_id=submission.id, consumed=[submission.id])
        backend.lose = 1
        assert await channel.finish_turn([completed()], turn_id=submission.id)
        assert await k.event_types(submission.thread_id) == ["turn_started", "turn_completed"]
        await core.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("setting", "value", "remedy"),
    [
        ("appendonly", "no", "appendonly yes"),
        ("appendfsync", "everysec", "appendfsync always"),
        ("maxmemory-policy", "allkeys-lru", "maxmemory-policy noeviction"),
        ("no-appendfsync-on-rewrite", "yes", "no-appendfsync-on-rewrite no"),
    ],
)
def test_a_server_with_unfit_settings_is_named_with_the_remedy(
    server: RedisServer, setting: str, value: str, remedy: str
) -> None:
    async def main() -> None:
        with redis.Redis.from_url(server.url) as client:
            client.config_set(setting, value)
        strict, lax = QueueCore(server.url), QueueCore(server.url, allow_volatile=True)
        for core in (strict, lax):
            await core.open()
            health = await core.check()
            await core.close()
            (problem,) = health.problems
            assert setting in problem.problem
            assert remedy in problem.remedy
            assert health.usable == (core is lax)

    asyncio.run(main())


def test_a_good_server_is_healthy(server: RedisServer) -> None:
    async def main() -> None:
        async with served(server) as k:
            health = await k.core.check()
            assert (health.usable, health.problems) == (True, [])
            assert int(health.version.split(".")[0]) >= 7

    asyncio.run(main())


def test_a_server_without_memory_refuses_whole_steps(server: RedisServer) -> None:
    """Nothing is accepted, claimed or reaped by halves, and reading still works."""

    async def main() -> None:
        async with served(server) as k:
            queued = new_id()
            run = await k.running()
            await k.submit(queued, say("x" * 1_000_000))
            with redis.Redis.from_url(server.url) as client:
                client.zadd("py:{0}:leases", {run.thread: 1})
                client.config_set("maxmemory", "1mb")
                for call in (
                    k.submit(new_id(), say()),
                    k.core.claim("w"),
                    k.server.run("reap", {"ttl": 0, "limit": 9}),
                ):
                    with pytest.raises(QueueUnavailable, match="memory"):
                        await call
                assert len(await k.core.read_lines(run.thread, after=None, limit=9)) == 1
                client.config_set("maxmemory", "0")
            await k.server.run("reap", {"ttl": 0, "limit": 9})
            assert {(await k.claim()).thread_id for _ in range(2)} == {queued, run.thread}

    asyncio.run(main())
