"""Agents that start agents, reviews and hooks, with everything real but the model."""

import json
from pathlib import Path

import pytest

from patchyard.protocol.events import HookCompleted, ItemCompleted, PatchProduced, ReviewCompleted
from patchyard.protocol.items import CommandExecutionItem
from patchyard.protocol.model_items import FunctionCallOutput
from patchyard.protocol.ops import Review, RunUserShellCommand
from patchyard.protocol.rollout_lines import EventMsgLine, ResponseItemLine
from patchyard.replay import Script
from patchyard.rollout import decode_line

from .repositories import FIX, buggy_repository
from .service import Service
from .test_patch import call, ended, patch, run, say, script, spec, states

pytestmark = [pytest.mark.engine, pytest.mark.redis, pytest.mark.timeout(300)]


def tool(name: str, **arguments: object) -> dict[str, object]:
    return {"items": [{"call": name, "arguments": arguments}]}


def test_an_agent_works_on_a_copy_of_its_parents_work_tree(tmp_path: Path) -> None:
    repository = buggy_repository(tmp_path)
    scripted = Script.model_validate(
        {
            "threads": [
                {
                    "match": {"contains": "case child."},
                    "steps": [call("git diff --stat; echo mine > child.txt"), say("calc.py is changed, nothing else")],
                },
                {
                    "match": {"contains": "case parent."},
                    "steps": [
                        patch(FIX),
                        tool("spawn_agent", message="case child. look"),
                        tool("wait_agent", timeout_ms=60_000),
                        say("done"),
                    ],
                },
            ]
        }
    )

    async def body(service: Service) -> None:
        task, events = await ended(service, spec(repository, "parent"))
        assert events[-1].type == "turn_completed"
        outputs = [
            json.loads(str(line.payload.output))
            for line in await task.lines()
            if isinstance(line, ResponseItemLine) and isinstance(line.payload, FunctionCallOutput)
        ]
        child = outputs[0]["agent_id"]
        assert outputs[1]["agents"] == {child: {"status": "completed", "message": "calc.py is changed, nothing else"}}
        lines = [decode_line(line) for line in await service.records(child)]
        (looked,) = [
            line.payload.item
            for line in lines
            if isinstance(line, EventMsgLine) and isinstance(line.payload, ItemCompleted)
            if isinstance(line.payload.item, CommandExecutionItem)
        ]
        assert "calc.py" in (looked.aggregated_output or "")
        assert looked.exit_code == 0
        (produced,) = [event for event in events if isinstance(event, PatchProduced)]
        assert produced.patch.files == 1, "what the child wrote is not in the parent's patch"
        state = await service.queue.thread_state(child)
        assert state is not None
        assert state.status == "closed"

    run(tmp_path, scripted, body, workers=2)


def test_hooks_run_in_the_box_and_a_review_and_a_persons_command_follow(tmp_path: Path) -> None:
    repository = buggy_repository(tmp_path)
    report = json.dumps({"findings": [], "correct": True, "explanation": "Nothing to find."})
    guard = "python3 -c \"import json,sys; c=json.load(sys.stdin)['tool_input']['command']; sys.exit('push' in c)\""
    blocking = f"{guard} || {{ echo pushing is not allowed >&2; exit 2; }}"
    scripted = script(hooks=[call("git push"), patch(FIX), say("done"), say(report)])

    async def body(service: Service) -> None:
        hooks = {
            "SessionStart": [{"command": "echo use tabs; test -f calc.py"}],
            "PreToolUse": [{"matcher": "exec_command", "command": blocking}],
        }
        task, events = await ended(service, spec(repository, "hooks", hooks=hooks))
        assert events[-1].type == "turn_completed", events[-1]
        done = [(e.event, e.outcome, e.message) for e in events if isinstance(e, HookCompleted)]
        assert done == [("SessionStart", "ok", None), ("PreToolUse", "blocked", "pushing is not allowed")]
        await task.ask(Review())
        events = await task.wait_for("turn_completed", count=2)
        assert [e.explanation for e in events if isinstance(e, ReviewCompleted)] == ["Nothing to find."]
        await task.ask(RunUserShellCommand(command="git diff --stat && echo more >> notes.txt"))
        events = await task.wait_for("turn_completed", count=3)
        ran = [e.item for e in events if isinstance(e, ItemCompleted) and isinstance(e.item, CommandExecutionItem)]
        assert "calc.py" in (ran[-1].aggregated_output or ""), "it sees the work of the turn before"
        assert [e.patch.files for e in events if isinstance(e, PatchProduced)][-1] == 2
        assert len([s for s in states(events) if s[0].is_terminal]) == 1, "only the task's own turn speaks for it"

    run(tmp_path, scripted, body)
