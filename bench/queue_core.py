"""Times of the queue core's calls with fsync always: submit, claim, commit, finish, beat; Redis and Valkey interleaved.

    python bench/queue_core.py [--rounds 5] [--threads 200] [--json FILE]

Prints one JSON object; latencies in milliseconds. A server that is not installed is skipped with a line that says so.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from patchyard.adapters.queue import QueueCore, QueueThreadChannel, ThreadRegistration
from patchyard.protocol import events, ops
from patchyard.protocol.ids import new_id
from patchyard.protocol.model_items import Message, OutputText, TokenUsage
from patchyard.protocol.ops import Submission
from tests.servers import FLAVOURS, redis_server, server_binary

Samples = dict[str, list[float]]


async def timed(samples: Samples, name: str, call: Awaitable[Any]) -> Any:
    begin = time.perf_counter()
    answer = await call
    samples.setdefault(name, []).append((time.perf_counter() - begin) * 1000)
    return answer


def submission(thread: str, tenant: str) -> Submission:
    op = ops.TurnInput(items=(ops.TextInput(text="find the bug " * 20),))
    return Submission(
        id=new_id(),
        tenant_id=tenant,
        thread_id=thread,
        op=op,
        submitted_at=time.time_ns() // 1_000_000,
        idempotency_key=new_id(),
    )


async def one_round(url: str, threads: int, samples: Samples, rates: Samples) -> None:
    core = QueueCore(url)
    await core.open()
    for number in range(threads):
        tenant = f"t{number % 20}"
        registration = ThreadRegistration(repository=f"r{number % 50}", spec_json="{}" * 500)
        await timed(samples, "submit", core.submit(submission(new_id(), tenant), registration=registration))
    item = events.ItemCompleted.model_validate(
        {"item": {"type": "agent_message", "id": "m", "text": "some words " * 40}, "completed_at": 1}
    )
    message = Message(role="assistant", content=(OutputText(text="some words " * 40),))
    done = events.TurnCompleted(usage=TokenUsage(), model_requests=1, tool_calls=0, duration_ms=1)
    channels = []
    for _ in range(threads):
        claim = await timed(samples, "claim", core.claim("w"))
        channels.append(QueueThreadChannel(core, claim))
    await timed(samples, f"beat of {threads} leases", core.beat("w", {c.thread_id: c.fence for c in channels}))
    for channel in channels:
        await timed(samples, "commit of 2 records", channel.commit([item, message], turn_id=channel.active_turn_id))
    await together(channels, item, rates)
    for channel in channels:
        assert channel.active_turn_id is not None
        await timed(samples, "finish_turn", channel.finish_turn([done], turn_id=channel.active_turn_id))
    await core.close()


async def together(channels: list[QueueThreadChannel], item: events.ItemCompleted, rates: Samples) -> None:
    """50 turns that commit at the same time."""
    begin = time.perf_counter()

    async def ten(channel: QueueThreadChannel) -> None:
        for _ in range(10):
            await channel.commit([item], turn_id=channel.active_turn_id)

    await asyncio.gather(*(ten(channel) for channel in channels[:50]))
    count = 10 * len(channels[:50])
    rates.setdefault("commits a second, 50 turns at once", []).append(count / (time.perf_counter() - begin))


def summary(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "p50": round(statistics.median(ordered), 3),
        "p99": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 3),
        "n": len(ordered),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=200)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    samples: dict[str, Samples] = {}
    rates: dict[str, Samples] = {}
    load_before = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        urls = {}
        for flavour in FLAVOURS:
            if server_binary(flavour) is None:
                print(f"{flavour}-server is not installed: skipped", file=sys.stderr)
                continue
            urls[flavour] = stack.enter_context(redis_server(Path(folder) / flavour, flavour))
        for _ in range(options.rounds):
            for flavour, url in urls.items():
                asyncio.run(one_round(url, options.threads, samples.setdefault(flavour, {}), rates.setdefault(flavour, {})))
    result = {
        "what": "queue core, appendfsync always, unix socket, one client process",
        "machine": {"cpus": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "load": {"before": load_before, "after": os.getloadavg()},
        "milliseconds": {name: {call: summary(v) for call, v in found.items()} for name, found in samples.items()},
        "rates": {name: {what: round(statistics.median(v), 1) for what, v in found.items()} for name, found in rates.items()},
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
