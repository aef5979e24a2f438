"""Turns that wait for agents hold no slot, and their family ends with them; everything real but the model."""

import asyncio
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from patchyard.protocol.events import DurableMsg, TurnCompleted, TurnInterrupted, TurnParked, TurnRecovered
from patchyard.protocol.model_items import FunctionCallOutput
from patchyard.protocol.ops import Interrupt
from patchyard.protocol.rollout_lines import EventMsgLine, ResponseItemLine
from patchyard.replay import Script
from patchyard.replay.script import CallStep
from patchyard.rollout import decode_line
from tests.waiting import WAIT_S, wait_for

from .repositories import buggy_repository
from .service import Service, Task, lose, running_service
from .test_agents import tool
from .test_patch import call, say, spec

pytestmark = [pytest.mark.engine, pytest.mark.redis, pytest.mark.timeout(400)]

LONG = 600_000
DEEP = {"PATCHYARD_AGENTS_DEPTH": "2"}


def spawn(*cases: str) -> dict[str, Any]:
    calls = [{"call": "spawn_agent", "arguments": {"message": f"case {case}. go"}} for case in cases]
    return {"items": calls}


def script(**threads: list[dict[str, Any]]) -> Script:
    matched = [{"match": {"contains": f"case {name}."}, "steps": steps} for name, steps in threads.items()]
    return Script.model_validate({"threads": matched})


def run(tmp_path: Path, scripted: Script, body: Any, *, workers: int = 1, slots: int = 1, **env: str) -> None:
    async def main() -> None:
        async with running_service(tmp_path, scripted) as service:
            for _ in range(workers):
                await service.start_worker(slots=slots, **env)
            await body(service)
        wait_for(lambda: service.containers() == [], "the engine has removed the boxes")
        assert "Traceback" not in service.logs(), service.logs()

    asyncio.run(main())


async def outputs(task: Task) -> list[Any]:
    lines = [line.payload for line in await task.lines() if isinstance(line, ResponseItemLine)]
    return [json.loads(str(item.output)) for item in lines if isinstance(item, FunctionCallOutput)]


async def events_of(service: Service, thread: str) -> list[DurableMsg]:
    lines = [decode_line(line) for line in await service.records(thread)]
    return [line.payload for line in lines if isinstance(line, EventMsgLine)]


def parks(events: list[DurableMsg]) -> list[str]:
    return [event.reason for event in events if isinstance(event, TurnParked)]


def assert_one_turn(task: Task, events: list[DurableMsg], end: str) -> None:
    kinds = Counter(event.type for event in events)
    assert kinds["turn_started"] == kinds[end] == 1
    assert kinds["turn_completed"] + kinds["turn_interrupted"] + kinds["turn_failed"] == 1
    assert kinds["item_started"] == kinds["item_completed"]


def test_one_slot_is_enough_for_a_turn_and_its_agents(tmp_path: Path) -> None:
    repository = buggy_repository(tmp_path)
    scripted = script(
        first=[call("touch up; until [ -e go ]; do sleep 0.1; done"), say("from the first")],
        second=[say("from the second")],
        root=[spawn("first", "second"), tool("wait_agent", timeout_ms=LONG), tool("wait_agent", timeout_ms=LONG), say("done")],
    )
    again = scripted.threads[2].steps[2].items[0]
    assert isinstance(again, CallStep)
    assert isinstance(again.arguments, dict)
    arguments = again.arguments

    async def body(service: Service) -> None:
        task = await service.create(spec(repository, "root"))
        await task.wait_for("turn_parked")
        first, second = [output["agent_id"] for output in await outputs(task)]
        arguments["ids"] = [second]
        (await file_in_box(service, "up")).with_name("go").touch()
        events = await task.ended()
        assert_one_turn(task, events, "turn_completed")
        assert set(parks(events)) == {"agents"}
        assert {event.reason for event in events if isinstance(event, TurnRecovered)} == {"unparked"}
        _, _, once, twice = await outputs(task)
        assert once["agents"][first] == {"status": "completed", "message": "from the first"}
        assert twice["agents"] == {second: {"status": "completed", "message": "from the second"}}
        end = events[-1]
        assert isinstance(end, TurnCompleted)
        assert (end.model_requests, end.tool_calls) == (4 + 2 + 1, 4 + 1), "what agents use counts"

    run(tmp_path, scripted, body)


def test_one_slot_is_enough_for_agents_of_agents(tmp_path: Path) -> None:
    scripted = script(
        leaf=[call("echo leaf"), say("from the leaf")],
        mid=[spawn("leaf"), tool("wait_agent", timeout_ms=LONG), say("from the middle")],
        root=[spawn("mid"), tool("wait_agent", timeout_ms=LONG), say("done")],
    )

    async def body(service: Service) -> None:
        task = await service.create(spec(None, "root"))
        events = await task.ended()
        assert_one_turn(task, events, "turn_completed")
        assert parks(events) == ["agents"]
        started, answer = await outputs(task)
        mid = started["agent_id"]
        assert answer["agents"] == {mid: {"status": "completed", "message": "from the middle"}}
        assert parks(await events_of(service, mid)) == ["agents"]
        end = events[-1]
        assert isinstance(end, TurnCompleted)
        assert (end.model_requests, end.tool_calls) == (3 + 3 + 2, 2 + 2 + 1)

    run(tmp_path, scripted, body, **DEEP)


def test_a_worker_that_dies_while_its_turn_waits_parked_changes_nothing(tmp_path: Path) -> None:
    scripted = script(
        child=[call("sleep 4"), say("answer")],
        root=[spawn("child"), tool("wait_agent", timeout_ms=LONG), say("done")],
    )

    async def body(service: Service) -> None:
        task = await service.create(spec(None, "root"))
        await task.wait_for("turn_parked")
        os.kill(service.workers[0].pid, signal.SIGKILL)
        await asyncio.to_thread(service.workers[0].wait, WAIT_S)
        (child,) = await outputs(task)
        await lose(service.queue, child["agent_id"])
        await service.start_worker(slots=1)
        events = await task.ended()
        assert_one_turn(task, events, "turn_completed")
        (child, answer) = await outputs(task)
        assert answer["agents"] == {child["agent_id"]: {"status": "completed", "message": "answer"}}

    run(tmp_path, scripted, body)


def test_an_interrupt_of_a_turn_that_waits_parked_ends_its_agents_and_their_commands(tmp_path: Path) -> None:
    scripted = script(
        leaf=[call("sleep 1000"), say("never")],
        mid=[spawn("leaf"), tool("wait_agent", timeout_ms=LONG), say("never")],
        root=[spawn("mid"), tool("wait_agent", timeout_ms=LONG), say("never")],
    )

    async def body(service: Service) -> None:
        task = await service.create(spec(None, "root"))
        await task.wait_for("turn_parked")
        (mid,) = [output["agent_id"] for output in await outputs(task)]
        service.threads.append(mid)
        middle = Task(service, mid, "", "")
        await middle.wait_for("turn_parked")
        (leaf,) = [output["agent_id"] for output in await outputs(middle)]
        service.threads.append(leaf)
        last = Task(service, leaf, "", "")
        await last.wait_for("item_started", count=2)  # the order, and the command that it runs
        await last.wait_for("token_count")
        await task.ask(Interrupt())
        events = await task.ended()
        assert events[-1].type == "turn_interrupted"
        assert isinstance(events[-1], TurnInterrupted)
        assert events[-1].model_requests == 2 + 2 + 1
        for agent in (middle, last):
            told = await agent.wait_for("thread_closed")
            assert [event.type for event in told].count("turn_interrupted") == 1
        await until_no_container(service)
        assert await service.queue.claim("nobody") is None

    run(tmp_path, scripted, body, **DEEP)


async def file_in_box(service: Service, name: str) -> Path:
    """A file that a command has written into its work tree."""
    checkouts = service.settings.home / "workspaces" / "checkouts"
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        if found := list(checkouts.glob(f"*/workspace/{name}")):
            return found[0]
        await service.news_or(0.1)
    raise AssertionError(f"no command wrote {name}")


async def until_no_container(service: Service) -> None:
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        if not service.containers():
            return
        await service.news_or(0.2)
    raise AssertionError(f"containers are left: {service.containers()}")
