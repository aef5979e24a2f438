"""A worker process for the chaos test: claims threads, plays a small agent on each. Arguments: URL, name, lease in s."""

import asyncio
import contextlib
import signal
import sys

from patchyard.adapters.queue import Claim, ControlReader, QueueCore, QueueThreadChannel, QueueUnavailable
from patchyard.agent.ports import LeaseLost
from patchyard.protocol import events, ops
from patchyard.protocol.items import UserMessageItem
from patchyard.protocol.model_items import TokenUsage
from patchyard.protocol.ops import Submission

THREADS = 16
STEPS = 4
STEP_S = 0.08


class Agent:
    """One claimed thread: a turn has STEPS steps, and one more for each steer."""

    def __init__(self, channel: QueueThreadChannel, claim: Claim, name: str) -> None:
        self.channel = channel
        self.mark = f"{name} {claim.fence}"
        self.turn = claim.active_turn_id if claim.segment > 1 else None
        self.inbox: asyncio.Queue[Submission] = asyncio.Queue()
        self.begun = claim.next_ordinal > 0

    async def run(self) -> None:
        pump = asyncio.create_task(self._pump())
        try:
            if self.turn is not None:
                await self._turn(self.turn)
            while True:
                getting = asyncio.create_task(self.inbox.get())
                await asyncio.wait({getting, pump}, return_when=asyncio.FIRST_COMPLETED)
                if not getting.done():
                    getting.cancel()
                    await pump
                await self._take(getting.result())
        finally:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)

    async def _pump(self) -> None:
        while True:
            self.inbox.put_nowait(await self.channel.receive())

    async def _take(self, submission: Submission) -> None:
        if isinstance(submission.op, ops.TurnInput):
            record = events.TurnStarted(model=self.mark, submitted_at=submission.submitted_at, started_at=1)
            await self.channel.commit([record], turn_id=submission.id, consumed=[submission.id])
            await self._turn(submission.id)
        else:
            done = events.OpApplied(op=submission.op.type)
            await self.channel.commit([done], submission_id=submission.id, consumed=[submission.id])

    async def _turn(self, turn: str) -> None:
        left = STEPS
        while True:
            while not self.inbox.empty():
                submission = self.inbox.get_nowait()
                match submission.op:
                    case ops.Interrupt():
                        return await self._interrupted(turn, submission)
                    case ops.TurnInput() if submission.id != turn:
                        item = UserMessageItem(id=submission.id, content=(), submission_id=submission.id)
                        told = events.ItemCompleted(item=item, completed_at=1)
                        await self.channel.commit([told], turn_id=turn, consumed=[submission.id])
                        left += 1
                    case ops.TurnInput():
                        record = events.TurnStarted(model=self.mark, submitted_at=1, started_at=1)
                        await self.channel.commit([record], turn_id=turn, consumed=[submission.id])
                    case _:
                        done = events.OpApplied(op=submission.op.type)
                        await self.channel.commit([done], submission_id=submission.id, consumed=[submission.id])
            if left <= 0:
                done = events.TurnCompleted(usage=TokenUsage(), model_requests=0, tool_calls=0, duration_ms=1)
                if await self.channel.finish_turn([done], turn_id=turn):
                    return None
                await self._wait_for_news()
                continue
            self.channel.live(events.AgentMessageDelta(item_id=turn, delta=f"step {left} "), turn_id=turn)
            await asyncio.sleep(STEP_S)
            await self.channel.commit([events.Warning_(message=self.mark)], turn_id=turn)
            left -= 1

    async def _interrupted(self, turn: str, submission: Submission) -> None:
        dropped: list[str] = []
        consumed = [submission.id]
        while True:
            ending = events.TurnInterrupted(usage=TokenUsage(), dropped_submission_ids=tuple(dropped))
            if await self.channel.finish_turn([ending], turn_id=turn, consumed=[*consumed, *dropped]):
                return
            await self._wait_for_news()
            while not self.inbox.empty():
                late = self.inbox.get_nowait()
                if isinstance(late.op, ops.TurnInput) and late.id != turn:
                    dropped.append(late.id)
                elif isinstance(late.op, ops.ThreadSettings | ops.Interrupt):
                    done = events.OpApplied(op=late.op.type)
                    await self.channel.commit([done], submission_id=late.id, consumed=[late.id])

    async def _wait_for_news(self) -> None:
        """A refused end means that a steer is on its way to the inbox."""
        while self.inbox.empty():
            if not self.channel.held:
                raise LeaseLost
            await asyncio.sleep(0.005)


class Worker:
    def __init__(self, core: QueueCore, name: str) -> None:
        self.core = core
        self.name = name
        self.running: dict[str, tuple[int, asyncio.Task[None]]] = {}
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        helpers = [asyncio.create_task(ControlReader(self.core, self.name).run()), asyncio.create_task(self._beat())]
        while not self.stopping.is_set():
            claim = None
            if len(self.running) < THREADS:
                with contextlib.suppress(QueueUnavailable):
                    claim = await self.core.claim(self.name)
            if claim is not None:
                self.running[claim.thread_id] = (claim.fence, asyncio.create_task(self._serve(claim)))
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await self.stopping.wait()
        for _, task in self.running.values():
            task.cancel()
        await asyncio.gather(*(task for _, task in self.running.values()), *helpers[:0], return_exceptions=True)
        for helper in helpers:
            helper.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)

    async def _serve(self, claim: Claim) -> None:
        channel = QueueThreadChannel(self.core, claim)
        try:
            await Agent(channel, claim, self.name).run()
        except LeaseLost:
            pass
        except asyncio.CancelledError:
            with contextlib.suppress(LeaseLost):
                await channel.hand_over()
        finally:
            self.running.pop(claim.thread_id, None)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.core.lease_ttl_s / 4)
            with contextlib.suppress(QueueUnavailable):
                await self.core.beat(self.name, {thread: fence for thread, (fence, _) in self.running.items()})


async def main() -> None:
    url, name, lease = sys.argv[1:4]
    core = QueueCore(url, lease_ttl_s=float(lease))
    while True:
        try:
            await core.open()
            break
        except QueueUnavailable:
            await asyncio.sleep(0.1)
    worker = Worker(core, name)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stopping.set)
    await worker.run()
    await core.close()


if __name__ == "__main__":
    asyncio.run(main())
