import asyncio

from patchyard.agent import SessionOutcome
from patchyard.testing.builders import message, reasoning, response, says, shell
from patchyard.testing.harness import AgentHarness
from patchyard.testing.scripted_sandbox import Command


def test_a_message_completes_the_turn():
    async def main():
        h = AgentHarness([says("All done.")])
        sub = h.submit()
        assert await h.run() is SessionOutcome.IDLE
        h.assert_done()
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
        assert (end.model_requests, end.tool_calls, end.usage.total_tokens) == (1, 0, 15)
        assert {line.turn_id for line in h.channel.lines} == {sub.id}

    asyncio.run(main())


def test_a_command_runs_and_its_output_goes_back():
    async def main():
        h = AgentHarness([response(shell("ls", "c1")), says("ok")], commands=[Command("ls", b"a.py\n")])
        h.submit()
        await h.run()
        h.assert_done()
        text = h.model.outputs()["c1"]
        assert "Process exited with code 0" in text
        assert text.endswith("Output:\na.py\n")

    asyncio.run(main())
