"""The replay model as its clients meet it."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest

from patchyard.replay import ReplayServer, Script, SharedSequence, parse_script
from tests.waiting import WAIT_S

USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "fix it"}]}


def body(*items: dict[str, Any], thread: str = "t1", **more: Any) -> dict[str, Any]:
    return {"model": "gpt-5.5", "input": list(items or [USER]), "stream": True, "prompt_cache_key": thread, **more}


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


def serve(script: str | Script, scene: Callable[[httpx.AsyncClient, ReplayServer], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        server = ReplayServer(parse_script(script) if isinstance(script, str) else script)
        await server.start()
        try:
            async with httpx.AsyncClient(base_url=server.base_url, trust_env=False, timeout=WAIT_S) as client:
                await scene(client, server)
        finally:
            await server.close()

    asyncio.run(run())


def test_a_message_comes_in_pieces_and_whole() -> None:
    text = "The fix is in pathspec.py, line 280."

    async def scene(client: httpx.AsyncClient, server: ReplayServer) -> None:
        answer = await client.post("/responses", json=body())
        assert answer.headers["content-type"].startswith("text/event-stream")
        found = events(answer.text)
        deltas = [event["delta"] for event in found if event["type"] == "response.output_text.delta"]
        assert len(deltas) > 5
        assert "".join(deltas) == text
        assert found[0]["type"] == "response.created"
        assert found[-1]["type"] == "response.completed"
        assert found[-1]["response"]["usage"]["output_tokens"] == 7
        assert server.log.single_request().outcome == "completed"

    serve(f"steps: [{{items: [{{message: '{text}'}}], usage: {{output_tokens: 7}}}}]", scene)


def test_every_thread_has_its_own_cursor_and_the_matching_script() -> None:
    script = """
threads:
  - match: {contains: pathspec}
    steps: [{items: [{message: one}]}, {items: [{message: two}]}]
steps: [{items: [{message: fallback}]}]
"""

    async def scene(client: httpx.AsyncClient, server: ReplayServer) -> None:
        mine = {"type": "message", "role": "user", "content": "fix pathspec"}
        said = []
        for thread, item in (("a", mine), ("b", mine), ("a", mine), ("c", USER)):
            answer = await client.post("/responses", json=body(item, thread=thread))
            said += [event["text"] for event in events(answer.text) if event["type"] == "response.output_text.done"]
        assert said == ["one", "one", "two", "fallback"]
        assert server.violations.count == 0

    serve(script, scene)


def test_threads_are_told_apart_by_headers_or_by_their_first_message() -> None:
    async def scene(client: httpx.AsyncClient, server: ReplayServer) -> None:
        bare = {"model": "m", "input": [USER], "stream": True}
        await client.post("/responses", json=bare, headers={"thread-id": "h"})
        await client.post("/responses", json=bare)
        await client.post("/responses", json=bare | {"input": "something else"})
        keys = [entry.thread for entry in server.log.all()]
        assert keys[0] == "h"
        assert len(set(keys)) == 3

    serve("{steps: [{items: [{message: x}]}]}", scene)


def test_a_used_up_script_answers_400_and_is_a_violation() -> None:
    async def scene(client: httpx.AsyncClient, server: ReplayServer) -> None:
        await client.post("/responses", json=body())
        answer = await client.post("/responses", json=body())
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "script_exhausted"
        assert "repeat_last" in answer.json()["error"]["message"]
        report = (await client.get("/violations")).json()
        assert [found["kind"] for found in report["violations"]] == ["unexpected_request"]

    serve("steps: [{items: [{message: x}]}]", scene)


def test_repeat_last_and_times() -> None:
    async def scene(client: httpx.AsyncClient, server: ReplayServer) -> None:
        status = [(await client.post("/responses", json=body())).status_code for _ in range(5)]
        assert status == [500, 500, 200, 200, 200]
        assert server.violations.count == 0

    serve("{steps: [{error: {status: 500}, times: 2}, {items: [{message: x}]}], repeat_last: true}", scene)


def test_expectations_look_at_what_is_new() -> None:
    script = """
steps:
  - {expect: {contains: ["fix it"]}, items: [{call: exec_command, arguments: {cmd: ls}, id: c1}]}
  - {expect: {contains: ["fix it", "a \\"quoted\\" line"]}, items: [{message: x}]}
"""

    async def scene(client: httpx.AsyncClient, server: ReplayServer) -> None:
        first = events((await client.post("/responses", json=body())).text)
        call = next(e["item"] for e in first if e["type"] == "response.output_item.done")
        output = {"type": "function_call_output", "call_id": "c1", "output": 'a "quoted" line'}
        await client.post("/responses", json=body(USER, call, output))
        assert [found.message for found in server.violations.all()] == [
            "step 1 expects 'fix it' in the new items; it is not there"
        ]

    serve(script, scene)


def test_a_rewritten_history_and_a_lost_call_are_seen_over_http() -> None:
    async def scene(client: httpx.AsyncClient, server: ReplayServer) -> None:
        await client.post("/responses", json=body())
        await client.post("/responses", json=body({**USER, "role": "developer"}))
        assert [found.kind.value for found in server.violations.all()] == ["rewritten_history", "lost_call"]

    serve("steps: [{items: [{call: exec_command}]}, {items: [{message: x}]}]", scene)


def test_a_compaction_request_may_differ_and_a_new_window_begins_anew() -> None:
    async def scene(client: httpx.AsyncClient, server: ReplayServer) -> None:
        other = {**USER, "content": "summary"}
        window = {"x-patchyard-window": "t1:0"}
        await client.post("/responses", json=body(), headers=window)
        await client.post("/responses", json=body(other), headers=window | {"x-patchyard-request-kind": "compaction"})
        await client.post("/responses", json=body(USER, other), headers=window)
        await client.post("/responses", json=body(other), headers={"x-codex-window-id": "t1:1"})
        assert server.violations.count == 0

    serve("{steps: [{items: [{message: x}]}], repeat_last: true}", scene)


def test_errors_headers_and_bodies_are_sent_as_scripted() -> None:
    async def scene(client: httpx.AsyncClient, server: ReplayServer) -> None:
        answer = await client.post("/responses", json=body())
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1.5")
        assert answer.json()["error"]["code"] == "rate_limit_exceeded"
        answer = await client.post("/responses", json=body())
        assert (answer.status_code, answer.text) == (502, "<html>bad gateway</html>")

    serve(
        "steps: [{error: {status: 429, code: rate_limit_exceeded, retry_after: 1.5}},"
        " {error: {status: 502, body: '<html>bad gateway</html>'}}]",
        scene,
    )


def test_cut_after_breaks_the_connection_in_the_stream() -> None:
    async def scene(client: httpx.AsyncClient, server: ReplayServer) -> None:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post("/responses", json=body())
        assert (server.log.single_request().outcome, server.log.single_request().events) == ("cut", 3)

    serve("steps: [{items: [{message: a long answer}], cut_after: 3}]", scene)


def test_a_client_that_leaves_ends_the_response() -> None:
    async def scene(client: httpx.AsyncClient, server: ReplayServer) -> None:
        async with client.stream("POST", "/responses", json=body()) as answer:
            await anext(answer.aiter_bytes())
        await asyncio.wait_for(closed(server), WAIT_S)
        assert server.log.single_request().outcome == "client_closed"

    async def closed(server: ReplayServer) -> None:
        while server._connections:
            await asyncio.wait(tuple(server._connections))

    serve("steps: [{items: [{message: x}], hang_after: 1}]", scene)


def test_the_other_addresses() -> None:
    async def scene(client: httpx.AsyncClient, server: ReplayServer) -> None:
        assert (await client.get("/responses", headers={"upgrade": "websocket", "connection": "upgrade"})).status_code == 426
        assert (await client.get("/models")).json()["data"][0]["id"] == "gpt-5.5"
        assert (await client.get("/healthz")).json()["status"] == "ok"
        assert (await client.get("/nothing")).status_code == 404
        assert (await client.post("/script", content="steps: 1")).status_code == 400
        assert (await client.post("/script", content="steps: [{items: [{message: new}]}]")).status_code == 200
        assert "new" in (await client.post("/responses", json=body(), headers={"authorization": "Bearer k"})).text
        (logged,) = (await client.get("/requests")).json()["requests"]
        assert (logged["thread"], logged["headers"]["authorization"]) == ("t1", "[redacted]")

    serve("steps: [{items: [{message: old}]}]", scene)


def test_what_is_no_model_request_is_a_violation() -> None:
    async def scene(client: httpx.AsyncClient, server: ReplayServer) -> None:
        await client.post("/responses", content=b"not json")
        await client.post("/responses", json={"model": "m", "input": [], "stream": False})
        messages = " ".join(found.message for found in server.violations.all())
        assert "not a JSON object" in messages
        assert "`stream` must be true" in messages

    serve("{steps: [{items: [{message: x}]}], repeat_last: true}", scene)


def test_hundreds_of_threads_at_once() -> None:
    async def scene(client: httpx.AsyncClient, server: ReplayServer) -> None:
        answers = await asyncio.gather(*(client.post("/responses", json=body(thread=f"t{n}")) for n in range(300)))
        assert {answer.status_code for answer in answers} == {200}
        assert server.violations.count == 0

    serve("steps: [{items: [{message: hello there}]}]", scene)


def test_bodies_are_kept_within_the_bound_only() -> None:
    async def run() -> None:
        source = SharedSequence()
        server = ReplayServer(source, keep_bodies=2)
        for step in parse_script("{steps: [{items: [{message: x}]}, {}, {}]}").steps:
            source.add(step)
        await server.start()
        async with httpx.AsyncClient(base_url=server.base_url, trust_env=False, timeout=WAIT_S) as client:
            for number in range(3):
                await client.post("/responses", json=body(thread=f"t{number}"))
        await server.close()
        first, second, third = server.log.all()
        assert second.message_texts("user") == third.message_texts("user") == ["fix it"]
        with pytest.raises(LookupError, match="keep_bodies"):
            _ = first.input

    asyncio.run(run())
