import asyncio
import base64
import json

import pytest

from patchyard.agent.session import SessionOutcome
from patchyard.protocol.ops import Interrupt, UserInputAnswer
from patchyard.testing.builders import call, response, says, spec
from patchyard.testing.harness import AgentHarness

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20
QUESTIONS = [
    {
        "id": "db",
        "header": "Database",
        "question": "Which one?",
        "options": ["SQLite", {"label": "Postgres", "description": "x"}],
    },
    {"id": "why", "question": "Why?"},
]


def run(h):
    async def main():
        h.submit()
        await h.run()
        h.assert_done()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("data", "kind"),
    [(PNG, "png"), (b"\xff\xd8\xff\xe0", "jpeg"), (b"GIF89a..", "gif"), (b"RIFF\0\0\0\0WEBPVP8 ", "webp")],
)
def test_an_image_reaches_the_model_as_a_part_of_the_output(data, kind):
    h = AgentHarness(
        [response(call("view_image", "c1", path="shot.img", detail="high")), says("ok")], files={"/workspace/shot.img": data}
    )
    run(h)
    (part,) = h.model.outputs()["c1"]
    assert (part.type, part.detail) == ("input_image", "high")
    assert part.image_url == f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def test_an_image_survives_a_restart_byte_for_byte():
    h = AgentHarness([response(call("view_image", "c1", path="/workspace/a.png")), says("ok")], files={"/workspace/a.png": PNG})
    run(h)
    assert h.channel.restored().history == tuple(h.session._thread.history.items)


@pytest.mark.parametrize(
    ("path", "says_"),
    [("missing.png", "There is no file /workspace/missing.png"), ("a.txt", "is not a PNG"), ("", "There is no file")],
)
def test_what_is_no_image_is_said_in_plain_words(path, says_):
    h = AgentHarness([response(call("view_image", "c1", path=path)), says("ok")], files={"/workspace/a.txt": b"hello"})
    run(h)
    assert says_ in h.model.outputs()["c1"]


def test_a_question_is_answered_while_the_turn_holds():
    async def main():
        h = AgentHarness([response(call("request_user_input", "c1", questions=QUESTIONS)), says("ok")])
        h.submit()
        task = h.start()
        await h.until(lambda: h.of_type("request_user_input"))
        (asked,) = h.of_type("request_user_input")
        assert asked.questions[0].options == ("SQLite", "Postgres: x")
        misspelt = h.submit(UserInputAnswer(request_id="c1", answers={"bd": ("SQLite",)}))
        await h.until(lambda: h.channel.answers(misspelt))
        assert h.channel.answers(misspelt) == ["op_rejected"]  # and the question stays open
        answer = h.submit(UserInputAnswer(request_id="c1", answers={"db": ("SQLite",)}))
        await task
        h.assert_done()
        assert json.loads(h.model.outputs()["c1"]) == {"answers": {"db": {"answers": ["SQLite"]}, "why": {"answers": []}}}
        assert h.channel.answers(answer) == ["request_resolved"]

    asyncio.run(main())


def test_a_question_parks_the_turn_and_its_answer_resumes_it_under_the_same_id():
    async def main():
        h = AgentHarness([response(call("request_user_input", "c1", questions=QUESTIONS)), says("ok")], hold_time_s=60)
        turn = h.submit()
        assert await h.run() is SessionOutcome.PARKED
        (parked,) = h.of_type("turn_parked")
        assert parked.reason == "user_input"
        h.next_owner()
        h.submit(UserInputAnswer(request_id="c1", answers={"db": ("SQLite",), "why": ("because",)}))
        await h.run()
        h.assert_done()
        assert "because" in h.model.outputs()["c1"]
        assert {line.turn_id for line in h.channel.lines if line.turn_id} == {turn.id}
        assert len(h.of_type("request_user_input")) == 1

    asyncio.run(main())


def test_nobody_is_asked_where_nobody_may_be_asked():
    h = AgentHarness([response(call("request_user_input", "c1", questions=QUESTIONS)), says("ok")], spec=spec(approval="never"))
    run(h)
    assert "Decide yourself" in h.model.outputs()["c1"]
    assert h.of_type("request_user_input") == []


@pytest.mark.parametrize("questions", [[], QUESTIONS * 2, [QUESTIONS[0], QUESTIONS[0]], [{"id": "x"}]])
def test_bad_questions_are_an_output(questions):
    h = AgentHarness([response(call("request_user_input", "c1", questions=questions)), says("ok")])
    run(h)
    assert "question" in h.model.outputs()["c1"]


def test_an_interrupt_voids_the_question():
    async def main():
        h = AgentHarness([response(call("request_user_input", "c1", questions=QUESTIONS))])
        h.submit()
        task = h.start()
        await h.until(lambda: h.of_type("request_user_input"))
        h.submit(Interrupt())
        await task
        h.assert_done()
        assert [e.decision for e in h.of_type("request_resolved")] == ["void"]

    asyncio.run(main())
