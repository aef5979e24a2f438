import asyncio

from patchyard.agent.ports import ItemAdded, ItemDone, ReasoningSummaryDelta
from patchyard.agent.session import SessionOutcome
from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.protocol.model_items import Message, OpaqueItem, Reasoning
from patchyard.testing.builders import (
    call,
    completed,
    done,
    message,
    patch_call,
    raw_call,
    reasoning,
    response,
    says,
    shell,
    spec,
    streamed,
    typed,
)
from patchyard.testing.harness import AgentHarness
from patchyard.testing.scripted_model import Pause
from patchyard.testing.scripted_sandbox import Command
from tests.unit.agent.kit import run


def test_a_message_completes_the_turn():
    h = AgentHarness([says("All done.")])
    assert run(h) is SessionOutcome.IDLE
    assert h.types() == [
        "session_configured",
        "turn_started",
        "item_started",
        "item_completed",
        "item_started",
        "item_completed",
        "token_count",
        "turn_completed",
    ]
    end = h.end()
    assert end.last_agent_message == "All done."
    assert (end.model_requests, end.tool_calls, end.usage.total_tokens, end.cost_usd) == (1, 0, 15, None)


def test_the_turn_id_is_the_submission_id_on_every_record():
    async def main():
        h = AgentHarness([says("ok")])
        sub = h.submit()
        await h.run()
        assert {line.turn_id for line in h.channel.lines} == {sub.id}
        assert h.of_type("turn_started")[0].submitted_at == sub.submitted_at

    asyncio.run(main())


def test_a_command_runs_and_its_output_goes_back():
    h = AgentHarness([response(shell("ls", "c1")), says("ok")], commands=[Command("ls", b"a.py\n")])
    run(h)
    text = h.model.outputs()["c1"]
    assert "Process exited with code 0" in text
    assert text.endswith("Output:\na.py\n")


def test_an_empty_response_completes_the_turn():
    h = AgentHarness([[completed()]])
    run(h)
    assert h.end().type == "turn_completed"
    assert h.end().last_agent_message is None


def test_end_turn_false_asks_once_more():
    h = AgentHarness([says("thinking", end_turn=False), says("done")])
    run(h)
    assert h.end().last_agent_message == "done"


def test_each_message_of_a_response_is_an_item():
    h = AgentHarness([response(message("one"), message("two"))])
    run(h)
    texts = [e.item.text for e in h.of_type("item_completed") if e.item.type == "agent_message"]
    assert texts == ["one", "two"]


def test_an_unknown_tool_is_told_in_plain_words():
    h = AgentHarness([response(call("teleport", "c1")), says("ok")])
    run(h)
    assert h.model.outputs()["c1"] == "unsupported call: teleport"
    assert h.end().type == "turn_completed"


def test_broken_arguments_are_told_in_plain_words():
    h = AgentHarness([response(raw_call("exec_command", '{"cmd": ', "c1"), raw_call("exec_command", "{}", "c2")), says("ok")])
    run(h)
    outputs = h.model.outputs()
    assert outputs["c1"].startswith("The arguments of exec_command can't be used: they are not valid JSON")
    assert outputs["c2"] == "The arguments of exec_command can't be used: `cmd` is missing."


def test_a_wrong_type_of_argument_names_the_field():
    h = AgentHarness([response(call("write_stdin", "c1", session_id="seven")), says("ok")])
    run(h)
    assert "`session_id`" in h.model.outputs()["c1"]


def test_a_function_tool_called_as_freeform_is_not_fatal():
    item = patch_call("ls", "c1").model_copy(update={"name": "exec_command"})
    h = AgentHarness([response(item), says("ok")])
    run(h)
    assert "takes a JSON object" in h.model.outputs()["c1"]


def test_text_is_shown_live_while_it_arrives():
    h = AgentHarness([[*streamed("Hello big world", item_id="m1"), completed()]])
    run(h)
    assert "".join(m.delta for m in h.channel.shown) == "Hello big world"
    assert {m.item_id for m in h.channel.shown} == {"m1"}
    assert len(h.channel.shown) > 1


def test_a_call_is_shown_live_while_the_model_types_it():
    item = shell("pytest -q", "c1")
    h = AgentHarness([[*typed(item), completed()], says("ok")], commands=[Command("pytest -q")])
    run(h)
    shown = [m for m in h.channel.shown if m.type == "tool_call_input_delta"]
    assert {(m.item_id, m.name) for m in shown} == {("c1", "exec_command")}


def test_reasoning_goes_back_unchanged_and_is_shown_as_summary():
    item = reasoning("first", "second")
    steps = [
        [
            ItemAdded(Reasoning(id=item.id)),
            ReasoningSummaryDelta(item.id, "first ", 0),
            ReasoningSummaryDelta(item.id, "second ", 1),
            ItemDone(item),
            *done(shell("ls", "c1")),
            completed(),
        ],
        says("ok"),
    ]
    h = AgentHarness(steps, commands=[Command("ls")])
    run(h)
    assert item in h.model.requests[1].input
    assert "".join(m.delta for m in h.channel.shown if m.type == "reasoning_delta") == "first \n\nsecond "
    shown = [e.item for e in h.of_type("item_completed") if e.item.type == "reasoning"]
    assert [i.summary for i in shown] == [("first", "second")]


def test_items_of_unknown_kind_are_kept():
    odd = OpaqueItem.model_validate({"type": "web_search_call", "id": "ws_1", "status": "completed"})
    h = AgentHarness([[ItemDone(odd), *done(shell("ls", "c1")), completed()], says("ok")], commands=[Command("ls")])
    run(h)
    assert odd in h.model.requests[1].input


def test_an_item_without_an_id_is_paired_too():
    bare = Message.model_validate({"role": "assistant", "content": [{"type": "output_text", "text": "hi"}]})
    h = AgentHarness([[ItemAdded(bare), ItemDone(bare), completed()]])
    run(h)
    assert h.end().last_agent_message == "hi"


def test_the_gate_can_ask_for_another_step():
    h = AgentHarness([says("done?"), says("now done")], gate={"feedback": ["The check failed: 1 test."]})
    run(h)
    last = h.model.requests[1].input[-1]
    assert last.role == "user"
    assert last.content[0].text == "The check failed: 1 test."
    assert [o.last_agent_message for o in h.gate.asked] == ["done?", "now done"]
    assert len(h.gate.ended) == 1


def test_the_gates_events_are_committed_with_the_end():
    from patchyard.protocol.events import Warning_

    h = AgentHarness([says("ok")], gate={"events": (Warning_(message="patch stored"),)})
    run(h)
    assert h.types()[-2:] == ["warning", "turn_completed"]


def test_a_box_that_can_not_be_had_fails_the_turn():
    error = ErrorInfo.of(ErrorCode.ENGINE_UNAVAILABLE, "No Docker engine answers. Start one.")
    h = AgentHarness([response(shell("ls", "c1"))], source={"error": error})
    run(h)
    assert h.end().error == error
    outputs = [line.payload for line in h.channel.lines if line.type == "response_item" and "output" in line.payload.type]
    assert [o.call_id for o in outputs] == ["c1"]


def test_a_repository_that_can_not_be_had_fails_the_turn():
    error = ErrorInfo.of(ErrorCode.REPOSITORY_NOT_FOUND, "No such repository.")
    h = AgentHarness([], source={"instructions_error": error})
    run(h)
    assert h.end().error == error
    assert any(line.type == "response_item" for line in h.channel.lines), "the input is kept for the next turn"


def test_a_thread_without_tools_never_starts_a_box():
    h = AgentHarness([says("hello")])
    run(h)
    assert (h.source.prepared, h.source.asked) == (0, 0)


def test_the_box_starts_beside_the_first_request_of_a_repository_task():
    from patchyard.protocol.tasks import GitSource

    h = AgentHarness([says("hello")], spec=spec(repository=GitSource(url="https://example.org/r.git")))
    run(h)
    assert h.source.prepared == 1


def test_the_box_starts_when_a_call_begins_to_arrive():
    item = shell("ls", "c1")

    async def main():
        h = AgentHarness([[ItemAdded(item), Pause(5), ItemDone(item), completed()], says("ok")], commands=[Command("ls")])
        h.submit()
        task = h.start()
        await h.until(lambda: h.source.prepared)
        assert h.source.asked == 0
        await task
        h.assert_done()

    asyncio.run(main())


def test_the_request_carries_what_a_provider_needs():
    h = AgentHarness([says("ok")], spec=spec(model="gpt-y", effort="high"))
    run(h)
    request = h.model.requests[0]
    assert (request.model, request.effort, request.kind, request.attempt) == ("gpt-y", "high", "turn", 1)
    assert request.thread_id == h.channel.thread_id
    assert [tool["name"] for tool in request.tools] == [
        "exec_command",
        "write_stdin",
        "apply_patch",
        "update_plan",
        "view_image",
        "request_user_input",
    ]
    assert request.instructions.startswith("You are Patchyard's coding agent.")


def test_spans_of_turn_request_and_tool():
    h = AgentHarness([response(shell("ls", "c1")), says("ok")], commands=[Command("ls")])
    run(h)
    assert [s.name for s in h.telemetry.spans] == [
        "invoke_agent patchyard",
        "chat model-x",
        "execute_tool exec_command",
        "chat model-x",
    ]
    assert len({s.key for s in h.telemetry.spans}) == 4
    assert all(s.ended for s in h.telemetry.spans)


def test_a_fault_of_a_tool_is_an_output(monkeypatch, caplog):
    from patchyard.agent.tools.update_plan import UpdatePlan

    async def broken(self, call):
        raise RuntimeError("secret detail")

    monkeypatch.setattr(UpdatePlan, "run", broken)
    h = AgentHarness([response(call("update_plan", "c1", plan=[])), says("ok")])
    run(h)
    assert "secret detail" not in h.model.outputs()["c1"]
    assert "Try another way" in h.model.outputs()["c1"]


def test_a_fault_of_the_turn_ends_it_with_one_clear_event(caplog):
    h = AgentHarness([])  # the double raises at the first request

    async def main():
        h.submit()
        return await h.run()

    assert asyncio.run(main()) is SessionOutcome.IDLE
    assert h.end().type == "turn_failed"
    assert h.end().error.code is ErrorCode.INTERNAL
    h.channel.assert_clean()


def test_two_turns_one_after_the_other_extend_one_history():
    async def main():
        h = AgentHarness([says("one"), says("two")])
        h.submit()
        await h.run()
        h.session = h.new_session(h.channel.restored())
        h.submit()
        await h.run()
        h.assert_done()
        first, second = h.model.requests
        assert second.input[: len(first.input)] == first.input
        roles = [i.role for i in second.input]
        assert roles == ["developer", "user", "user", "assistant", "user"]

    asyncio.run(main())


def test_the_plan_is_shown():
    h = AgentHarness([response(call("update_plan", "c1", plan=[{"step": "look", "status": "in_progress"}])), says("ok")])
    run(h)
    assert h.of_type("plan_update")[0].plan[0].step == "look"
    assert h.model.outputs()["c1"] == "Plan updated"
