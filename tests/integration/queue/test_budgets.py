"""Limits of model providers, shared over workers: places, buckets, order, crashes, and a Redis that is slow or gone."""

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

from patchyard.adapters.queue import _redis as redis_backend
from patchyard.adapters.queue._redis import RedisBackend
from patchyard.adapters.queue.budgets import ProviderBudgets
from patchyard.adapters.queue.budgets import _shared as shared
from tests.servers import RedisServer
from tests.waiting import WAIT_S

FOR_EVER_MS = b"3600000"


@asynccontextmanager
async def workers(server: RedisServer, count: int, *, look_again: bool = True) -> AsyncIterator[list[ProviderBudgets]]:
    """Workers that a slow machine does not make give up on Redis. Without `look_again` only a call lets a waiting one go on."""
    with pytest.MonkeyPatch.context() as patch:
        for limit in ("CONNECT_TIMEOUT_S", "SOCKET_TIMEOUT_S"):
            patch.setattr(redis_backend, limit, WAIT_S)
        backends = [RedisBackend(server.url) for _ in range(count)]
    budgets = [
        ProviderBudgets(lambda backend=backend: backend, f"w{n}", answer_s=WAIT_S)  # type: ignore[misc]
        for n, backend in enumerate(backends)
    ]
    for one in budgets if not look_again else ():
        one._run = waits_for_ever(one._run)  # type: ignore[method-assign]
    try:
        yield budgets
    finally:
        for one in budgets:
            await one.close()
        for backend in backends:
            await backend.close()


def waits_for_ever(run: Callable[..., Awaitable[list[Any] | None]]) -> Any:
    """The script's answers, but who has to wait is not told to look again after a while."""

    async def patient(op: str, provider: str, **args: Any) -> list[Any] | None:
        reply = await run(op, provider, **args)
        return [reply[0], FOR_EVER_MS, *reply[2:]] if reply and reply[0] == b"wait" else reply

    return patient


def calls(server: RedisServer) -> int:
    """How often the script was asked."""
    with redis.Redis.from_url(server.url) as client:
        return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])


def run(scene: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(WAIT_S):
            await scene()

    asyncio.run(limited())


def test_no_more_than_the_limit_at_once_over_two_workers_and_nobody_polls(server: RedisServer) -> None:
    async def scene() -> None:
        async with workers(server, 2, look_again=False) as both:
            now = most = 0
            full = asyncio.Event()

            async def ask(number: int) -> None:
                nonlocal now, most
                worker = both[number % 2]
                permit = await worker.enter("p", tokens=1, concurrency=5)
                now += 1
                most = max(most, now)
                if most == 5:
                    full.set()
                # The first ones stay until the limit is reached, however slow the machine is.
                await full.wait()
                await asyncio.sleep(0)
                now -= 1
                await worker.leave("p", permit, tokens=1)

            await asyncio.gather(*(ask(number) for number in range(200)))
            assert most == 5
            # To ask, to be let in, to leave; and some that were woken together with another.
            assert calls(server) < 200 * 6

    run(scene)


def test_first_come_first_served_over_workers(server: RedisServer) -> None:
    async def scene() -> None:
        async with workers(server, 3, look_again=False) as all_of_them:
            first = await all_of_them[0].enter("p", tokens=1, concurrency=1)
            order: list[int] = []

            async def ask(number: int) -> None:
                worker = all_of_them[number % 3]
                permit = await worker.enter("p", tokens=1, concurrency=1)
                order.append(number)
                await worker.leave("p", permit, tokens=1)

            asking = []
            for number in range(9):
                asking.append(asyncio.ensure_future(ask(number)))
                await in_line(server, number + 1)
            await all_of_them[0].leave("p", first, tokens=1)
            await asyncio.gather(*asking)
            assert order == list(range(9))

    run(scene)


def test_requests_and_tokens_per_minute(server: RedisServer) -> None:
    async def scene() -> None:
        async with workers(server, 2) as (one, other):
            # 600 a minute: 100 at once after a quiet time, then one every 100 ms.
            started = time.monotonic()
            for number in range(104):
                await (one, other)[number % 2].enter("requests", tokens=1, requests_per_minute=600)
            assert time.monotonic() - started > 0.39
            # 60,000 tokens a minute: 10,000 at once; what was asked for too much comes back.
            started = time.monotonic()
            permit = await one.enter("tokens", tokens=10_000, tokens_per_minute=60_000)
            await one.leave("tokens", permit, tokens=10)
            before = calls(server)
            await other.enter("tokens", tokens=9_900, tokens_per_minute=60_000)
            assert calls(server) - before == 1, "it did not have to wait"
            await other.enter("tokens", tokens=500, tokens_per_minute=60_000)
            assert time.monotonic() - started > (10 + 9_900 + 500 - 10_000) / 1_000 - 0.01

    run(scene)


def test_a_pause_holds_for_all(server: RedisServer) -> None:
    async def scene() -> None:
        async with workers(server, 2) as (one, other):
            started = time.monotonic()
            await one.pause("p", 0.4)
            await other.enter("p", tokens=1)
            assert time.monotonic() - started > 0.39

    run(scene)


def test_a_crash_leaks_no_place(server: RedisServer) -> None:
    async def scene() -> None:
        async with workers(server, 2) as (dying, living):
            await dying.enter("p", tokens=1, concurrency=1)
            waiting = asyncio.ensure_future(dying.enter("p", tokens=1, concurrency=1))
            await in_line(server, 1)
            dying._tell = says_nothing  # type: ignore[method-assign]
            waiting.cancel()
            await asyncio.wait({waiting})
            # What a crash leaves: a place that nobody renews, and a permit in line that nobody asks for.
            client = redis.Redis.from_url(server.url)
            client.zadd("py:{0}:budget:p:held", {client.zrange("py:{0}:budget:p:held", 0, 0)[0]: 1})
            client.zadd("py:{0}:budget:p:seen", {client.zrange("py:{0}:budget:p:line", 0, 0)[0]: 1})
            before = calls(server)
            await living.enter("p", tokens=1, concurrency=1)
            assert calls(server) - before == 1, "it did not have to wait"

    run(scene)


async def says_nothing(*_: Any, **__: Any) -> None:
    """As a process that was killed."""


def test_who_gives_up_waiting_leaves_the_line(server: RedisServer) -> None:
    async def scene() -> None:
        async with workers(server, 2, look_again=False) as (one, other):
            held = await one.enter("p", tokens=1, concurrency=1)
            leaving = asyncio.ensure_future(one.enter("p", tokens=1, concurrency=1))
            await in_line(server, 1)
            staying = asyncio.ensure_future(other.enter("p", tokens=1, concurrency=1))
            await in_line(server, 2)
            leaving.cancel()
            await in_line(server, 1)
            await one.leave("p", held, tokens=1)
            await staying

    run(scene)


def test_without_redis_each_worker_keeps_to_the_limits(
    server: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "DEGRADED_S", 3600)

    async def scene() -> None:
        async with workers(server, 1) as (one,):
            first = await one.enter("p", tokens=1, concurrency=2)
            server.kill()
            second = await one.enter("p", tokens=1, concurrency=2)
            third = await one.enter("p", tokens=1, concurrency=2)
            waiting = asyncio.ensure_future(one.enter("p", tokens=1, concurrency=2))
            _, open_still = await asyncio.wait({waiting}, timeout=0.2)
            assert open_still
            await one.leave("p", second, tokens=5)
            await waiting
            for permit in (first, third, await waiting):
                await one.leave("p", permit, tokens=None)
            server.start()

    with caplog.at_level(logging.WARNING):
        run(scene)
    assert sum("keeps to them by itself" in record.message for record in caplog.records) == 1


def test_a_redis_that_hangs_is_waited_for_once(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "DEGRADED_S", 3600)

    async def scene() -> None:
        async with workers(server, 1) as (one,):
            await one.enter("p", tokens=1, concurrency=5)
            asked = 0
            backend = one._backend()

            def count() -> RedisBackend:
                nonlocal asked
                asked += 1
                return backend  # type: ignore[return-value]

            one._backend, one._answer_s = count, 0.3
            assert server.process is not None
            server.process.send_signal(signal.SIGSTOP)
            try:
                for _ in range(4):
                    await one.enter("p", tokens=1, concurrency=5)
            finally:
                server.process.send_signal(signal.SIGCONT)
            assert asked == 1

    run(scene)


async def in_line(server: RedisServer, count: int) -> None:
    client = redis.Redis.from_url(server.url)
    while client.zcard("py:{0}:budget:p:line") != count:
        await asyncio.sleep(0)
