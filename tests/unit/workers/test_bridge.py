import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.waiting import WAIT_S
from workers.bridge import Bridge


@pytest.fixture
def bridge() -> "Bridge":
    bridge = Bridge()
    bridge.start()
    yield bridge
    bridge.stop()
    bridge.stop()


def test_many_threads_wait_on_one_loop(bridge: Bridge) -> None:
    arrived = asyncio.Barrier(50)

    async def meet() -> int:
        await arrived.wait()
        return threading.get_ident()

    with ThreadPoolExecutor(50) as pool:
        loops = set(pool.map(lambda _: bridge.run(meet(), timeout_s=WAIT_S), range(50)))
    assert len(loops) == 1


def test_errors_come_back_to_the_thread(bridge: Bridge) -> None:
    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        bridge.run(fail())


def test_a_wait_that_is_over_cancels_the_work(bridge: Bridge) -> None:
    cancelled = threading.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(TimeoutError):
        bridge.run(hang(), timeout_s=0.01)
    assert cancelled.wait(WAIT_S)


def test_it_says_when_it_is_not_started() -> None:
    with pytest.raises(RuntimeError, match="not started"):
        Bridge().call_soon(lambda: None)
