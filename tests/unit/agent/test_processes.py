import asyncio

from patchyard.agent.tools.output import OutputBuffer, plain
from patchyard.testing.builders import call, response, says, shell, spec
from patchyard.testing.harness import AgentHarness
from patchyard.testing.scripted_model import Hold
from patchyard.testing.scripted_sandbox import Command, ScriptedProcess


def start(*names):
    return response(*(shell(name, name, yield_time_ms=250) for name in names))


def session_of(text):
    return int(text.split("session ID ")[1].split("\n")[0])


def test_the_command_used_longest_ago_makes_room_for_a_new_one():
    async def main():
        names = [f"c{i}" for i in range(12)]
        held = Hold(asyncio.Event(), asyncio.Event())
        h = AgentHarness(
            [start(*names[:10]), start(names[10]), [held, *response(call("write_stdin", "poke", session_id=1))], says("ok")],
            commands=[Command(name, hangs=True) for name in names[:11]],
            sessions_limit=10,
        )
        h.submit()
        task = h.start()
        await held.reached.wait()
        killed = [p.command.script for p in h.box.processes if p.killed_with]
        assert killed == ["c0"]
        assert "Warning: 10 commands run" in h.model.outputs()["c10"]
        assert [e.item.status for e in h.of_type("item_completed") if e.item.id == "c0"] == ["interrupted"]
        held.until.set()
        await task
        h.assert_done()

    asyncio.run(main())


def test_a_session_is_used_over_several_steps():
    async def main():
        look = Hold(asyncio.Event(), asyncio.Event())
        h = AgentHarness(
            [response(shell("python", "c1", yield_time_ms=250, tty=True)), [look], says("ok")],
            commands=[Command("python", b">>> ", hangs=True, echoes={b"1+1\n": b"2\n>>> "})],
        )
        h.submit()
        task = h.start()
        await look.reached.wait()
        number = session_of(h.model.outputs()["c1"])
        h.model._steps.insert(0, response(call("write_stdin", "c2", session_id=number, chars="1+1\n")))
        h.model._steps.insert(1, response(call("write_stdin", "c3", session_id=number, chars="")))
        look.until.set()
        await task
        h.assert_done()
        assert h.model.outputs()["c2"].endswith("Output:\n2\n>>> ")
        assert h.model.outputs()["c3"].endswith("Output:\n")
        assert h.box.requests[0].env["TERM"] == "xterm"

    asyncio.run(main())


def test_the_core_ends_a_command_that_the_box_does_not_end_in_time():
    async def main():
        h = AgentHarness(
            [response(shell("hang", "c1", yield_time_ms=30_000)), says("ok")],
            commands=[Command("hang", b"half", hangs=True)],
            spec=spec(command_timeout_s=5),
        )
        h.submit()
        await h.run()
        h.assert_done()
        text = h.model.outputs()["c1"]
        assert "stopped after 5 seconds" in text
        assert text.endswith("half")
        assert 7 <= h.clock.monotonic() < 8

    asyncio.run(main())


def test_a_box_that_can_not_end_a_command_does_not_hang_the_turn(monkeypatch):
    async def deaf(self, signal=9):
        self.killed_with = signal

    async def main():
        monkeypatch.setattr(ScriptedProcess, "kill", deaf)
        h = AgentHarness(
            [response(shell("hang", "c1", yield_time_ms=30_000)), says("ok")],
            commands=[Command("hang", hangs=True)],
            spec=spec(command_timeout_s=5),
        )
        h.submit()
        await h.run()
        assert "The command was lost" in h.model.outputs()["c1"]
        assert h.end().type == "turn_completed"
        for process in h.box.processes:
            process._task.cancel()

    asyncio.run(main())


def test_bytes_that_are_no_text_do_not_break_the_output():
    assert plain(b"a\xff\xfeb\0c\x1b[31mred\x1b[0m\r\nnext\rline") == "a��bcred\nnext\nline"


def test_huge_output_is_bounded_and_counted():
    buffer = OutputBuffer()
    for _ in range(3000):
        buffer.add(b"x" * 1023 + b"\n")
    captured = buffer.take()
    assert len(captured.head) + len(captured.tail) <= 1024 * 1024
    assert captured.original_tokens == 3000 * 1024 // 4
    text = captured.shaped(100)
    assert len(text) < 600
    assert "left out" in text


def test_no_output_is_wanted():
    async def main():
        h = AgentHarness(
            [response(shell("ls", "c1", max_output_tokens=0)), says("ok")],
            commands=[Command("ls", b"a long list of files\n" * 9)],
        )
        h.submit()
        await h.run()
        assert "tokens (" in h.model.outputs()["c1"]

    asyncio.run(main())
