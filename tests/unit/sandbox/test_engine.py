"""The engine client against answers that an engine gives, over a socket of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from patchyard.adapters.sandbox import BoxLabels, BoxRefused, BoxSpec, DiskFull, DockerBoxes, EngineUnavailable, ImageMissing
from patchyard.adapters.sandbox._engine import EngineClient
from patchyard.protocol.policies import DangerFullAccess

PING = b"HTTP/1.1 200 OK\r\nApi-Version: 1.44\r\nContent-Length: 2\r\n\r\nOK"
SPEC = BoxSpec(image="sha256:x", labels=BoxLabels("t", "th", "tu", "w"), policy=DangerFullAccess())


def answer(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


def with_engine(folder: Path, answers: dict[str, bytes], scenario: Callable[[str], Awaitable[None]]) -> list[str]:
    """Run a scenario against a socket that answers by request line; returns the request lines."""
    seen: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readline()).decode().rpartition(" ")[0]
        seen.append(line)
        writer.write(PING if line == "GET /_ping" else answers.get(line.partition("?")[0], answer(404, b"{}")))
        await writer.drain()
        writer.close()

    async def go() -> None:
        path = folder / "engine.sock"
        async with await asyncio.start_unix_server(serve, path):
            await scenario(f"unix://{path}")

    asyncio.run(go())
    return seen


def test_calls_are_made_in_the_engines_version_and_chunks_are_joined(tmp_path: Path) -> None:
    chunked = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n{"a": \r\n3\r\n42}\r\n0\r\n\r\n'

    async def scenario(url: str) -> None:
        client = EngineClient(url)
        response = await client.call("GET", "/info", query={"filters": '{"a b"}'})
        assert (response.status, response.body) == (200, {"a": 42})
        await client.call("GET", "/info")

    seen = with_engine(tmp_path, {"GET /v1.44/info": chunked}, scenario)
    assert seen == ["GET /_ping", "GET /v1.44/info?filters=%7B%22a%20b%22%7D", "GET /v1.44/info"]


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        (404, "No such image: sha256:x", ImageMissing),
        (400, "invalid mount config: bind source path does not exist: /secret/path", BoxRefused),
        (500, "mkdir /var/lib/docker/x: no space left on device", DiskFull),
        (500, "something at /secret/path broke", EngineUnavailable),
    ],
)
def test_refusals_to_create_are_told_without_host_paths(
    tmp_path: Path, status: int, message: str, error: type[Exception]
) -> None:
    async def scenario(url: str) -> None:
        with pytest.raises(error) as caught:
            await DockerBoxes(url, concurrency=1).start(SPEC)
        assert "/secret" not in str(caught.value)
        assert "/var/lib" not in str(caught.value)

    body = answer(status, b'{"message": "%s"}' % message.encode())
    with_engine(tmp_path, {"POST /v1.44/containers/create": body}, scenario)


def test_a_box_that_cannot_be_attached_is_removed(tmp_path: Path) -> None:
    async def scenario(url: str) -> None:
        boxes = DockerBoxes(url, concurrency=1)
        with pytest.raises(EngineUnavailable, match="attach"):
            await boxes.start(SPEC)
        await boxes.close()

    answers = {
        "POST /v1.44/containers/create": answer(201, b'{"Id": "abc"}'),
        "GET /v1.44/containers/abc/json": answer(200, b'{"State": {"Status": "created"}}'),
        "POST /v1.44/containers/abc/attach": answer(500, b"{}"),
    }
    seen = with_engine(tmp_path, answers, scenario)
    assert "DELETE /v1.44/containers/abc?force=1&v=1" in seen


def test_a_removal_that_the_engine_is_slow_with_is_waited_for(tmp_path: Path) -> None:
    """Who closes the boxes may look for what is left."""

    async def scenario(url: str) -> None:
        boxes = DockerBoxes(url, concurrency=1)
        with pytest.raises(EngineUnavailable, match="attach"):
            await boxes.start(SPEC)
        await boxes.close()

    answers = {
        "POST /v1.44/containers/create": answer(201, b'{"Id": "abc"}'),
        "GET /v1.44/containers/abc/json": answer(200, b'{"State": {"Status": "created"}}'),
        "POST /v1.44/containers/abc/attach": answer(500, b"{}"),
        "DELETE /v1.44/containers/abc": answer(409, b'{"message": "removal of container abc is already in progress"}'),
        "POST /v1.44/containers/abc/wait": answer(200, b"{}"),
    }
    seen = with_engine(tmp_path, answers, scenario)
    assert seen[-2:] == ["DELETE /v1.44/containers/abc?force=1&v=1", "POST /v1.44/containers/abc/wait?condition=removed"]


def test_an_engine_that_is_not_there_or_talks_nonsense(tmp_path: Path) -> None:
    async def nobody() -> None:
        with pytest.raises(EngineUnavailable, match="PATCHYARD_DOCKER_HOST"):
            await EngineClient(f"unix://{tmp_path}/none.sock").call("GET", "/info")

    async def nonsense(url: str) -> None:
        with pytest.raises(EngineUnavailable):
            await EngineClient(url).call("GET", "/info")

    asyncio.run(nobody())
    with_engine(tmp_path, {"GET /v1.44/info": b"hello\r\n\r\n"}, nonsense)
