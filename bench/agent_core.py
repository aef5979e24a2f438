"""CPU of the agent core alone, over doubles: `python bench/agent_core.py`. Prints JSON; needs nothing but pydantic."""

import argparse
import asyncio
import json
import platform
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from patchyard.agent.compaction.compactor import Compactor
from patchyard.agent.compaction.leaving_out import without_oldest
from patchyard.agent.compaction.window import new_window, user_messages
from patchyard.agent.context.history import History
from patchyard.protocol.model_items import FunctionCall, FunctionCallOutput, InputText, Message
from patchyard.testing.builders import completed, response, says, shell, streamed, usage
from patchyard.testing.harness import AgentHarness
from patchyard.testing.scripted_sandbox import Command

STEPS = 20
RUNS = 3
TURNS = 200


def harness() -> AgentHarness:
    """A turn of STEPS commands and an answer."""
    steps = [response(shell("ls", f"c{i}")) for i in range(STEPS)]
    return AgentHarness([*steps, says("done")], commands=[Command("ls", b"a.py\nb.py\n") for _ in range(STEPS)])


async def one_turn() -> None:
    """Run it."""
    h = harness()
    h.submit()
    await h.session.run()


async def many_turns() -> None:
    """TURNS of them at once."""
    harnesses = [harness() for _ in range(TURNS)]
    for h in harnesses:
        h.submit()
    await asyncio.gather(*(h.session.run() for h in harnesses))


async def long_answer() -> None:
    """4,000 tokens, a delta each."""
    h = AgentHarness([[*streamed("word " * 4000, size=5), completed()]])
    h.submit()
    await h.session.run()


def cpu_ms(work: object) -> float:
    """CPU of one run in milliseconds, median of RUNS."""
    times = []
    for _ in range(RUNS):
        before = time.process_time()
        asyncio.run(work())  # type: ignore[operator]
        times.append((time.process_time() - before) * 1000)
    return statistics.median(times)


def prompt_ms() -> float:
    """A step's prompt over a history of 2,000 items that was built before."""
    history = History()
    for i in range(1000):
        history.append(FunctionCall(call_id=f"c{i}", name="x", arguments="{}"))
        history.append(FunctionCallOutput(call_id=f"c{i}", output="x" * 1000))
    history.prompt()
    history.append(FunctionCall(call_id="last", name="x", arguments="{}"))
    history.append(FunctionCallOutput(call_id="last", output="x"))
    before = time.process_time()
    history.prompt()
    return (time.process_time() - before) * 1000


def compaction_ms() -> float:
    """A new window out of 2,000 items, when everything but the newest has to be left out of the request."""
    history = History()
    for i in range(1000):
        history.append(FunctionCall(call_id=f"c{i}", name="x", arguments="{}"))
        history.append(FunctionCallOutput(call_id=f"c{i}", output="x" * 1000))
        if i % 10 == 0:
            history.append(Message(role="user", content=(InputText(text="go on " * 50),)))
    history.prompt()
    before = time.process_time()
    items = without_oldest(list(history.prompt()), 100_000)
    kept = user_messages(history.items, 20_000)
    new_window(kept, items[-1], context=(), in_turn=True)
    return (time.process_time() - before) * 1000


async def compacted_turn() -> None:
    """A turn that goes on after 2,000 items were summarised."""
    full = usage(300_000, 100)
    steps = [response(*(shell("ls", f"c{i}") for i in range(1000)), tokens=full), says("summary"), says("done")]
    h = AgentHarness(steps, commands=[Command("ls", b"x" * 1000) for _ in range(1000)])
    h.submit()
    pieces: list[float] = []
    open_window = Compactor.run

    async def timed(self: Compactor, *args: Any, **fields: Any) -> None:
        before = time.process_time()
        await open_window(self, *args, **fields)
        pieces.append((time.process_time() - before) * 1000)

    Compactor.run = timed  # type: ignore[method-assign]
    try:
        await h.session.run()
    finally:
        Compactor.run = open_window  # type: ignore[method-assign]
    h.assert_done()
    COMPACTIONS.extend(pieces)


COMPACTIONS: list[float] = []


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    asyncio.run(one_turn())
    for _ in range(RUNS):
        asyncio.run(compacted_turn())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    figures = {
        "cpu_ms_per_step": round(cpu_ms(one_turn) / (STEPS + 1), 3),
        "cpu_ms_4000_deltas": round(cpu_ms(long_answer), 1),
        "prompt_ms_2000_items": round(prompt_ms(), 3),
        "new_window_ms_2000_items": round(compaction_ms(), 3),
        "compaction_ms_2000_items": round(statistics.median(COMPACTIONS), 3),
        "cpu_ms_per_step_200_turns": round(cpu_ms(many_turns) / TURNS / (STEPS + 1), 3),
        "rss_growth_mib_200_turns": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, 1),
        "python": platform.python_version(),
    }
    print(json.dumps(figures))
    if options.json:
        options.json.write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
