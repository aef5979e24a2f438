"""TLS, proxies and connections that die while idle: the sockets are our own, so these are ours to test."""

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from patchyard.adapters.model import ProviderConfig, ResponsesClient
from patchyard.agent.ports import ItemDone, ModelError, ModelRequest
from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.model_items import InputText, Message
from patchyard.replay import ReplayServer, parse_script
from patchyard.replay.player import Frame
from patchyard.testing import events as ev

BODY = b"".join(Frame(event, 0).sse() for event in ev.sse(ev.ev_message("over the wire")))
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A self-signed certificate for 127.0.0.1: its file, and a server's context."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.pem").write_bytes(built.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    return folder / "ca.pem", context


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers requests on one connection, each event in a packet (and TLS record) of its own."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
            )
            await reader.readexactly(length)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            for event in BODY.split(b"\n\n")[:-1]:
                event += b"\n\n"
                writer.write(b"%x\r\n%s\r\n" % (len(event), event))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, OSError):
        pass
    finally:
        writer.close()


async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Pass on what comes, until it ends."""
    try:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    except OSError:
        pass
    finally:
        target.close()


async def relay(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Everything to another port of this machine."""
    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
    await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))


@asynccontextmanager
async def listening(handler: Handler, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


async def say(client: ResponsesClient) -> str:
    request = ModelRequest(
        model="m",
        instructions="",
        input=[Message(role="user", content=(InputText(text="x"),))],
        tools=[],
        thread_id="t",
        turn_id="u",
    )
    items = [event.item async for event in client.stream(request) if isinstance(event, ItemDone)]
    assert isinstance(items[0], Message)
    return "".join(getattr(part, "text", "") for part in items[0].content)


def test_tls_with_an_own_ca(tmp_path: Path) -> None:
    async def run() -> None:
        ca_file, context = certificate(tmp_path)
        async with listening(answer, context) as port:
            config = ProviderConfig(base_url=f"https://127.0.0.1:{port}/v1", ca_file=str(ca_file))
            async with ResponsesClient(config) as client:
                assert [await say(client) for _ in range(3)] == ["over the wire"] * 3

    asyncio.run(run())


def test_an_untrusted_certificate_is_refused_with_a_reason(tmp_path: Path) -> None:
    async def run() -> None:
        _, context = certificate(tmp_path)
        async with listening(answer, context) as port:
            config = ProviderConfig(base_url=f"https://127.0.0.1:{port}/v1", request_retries=0)
            async with ResponsesClient(config) as client:
                with pytest.raises(ModelError, match="certificate") as caught:
                    await say(client)
        assert caught.value.code is ErrorCode.MODEL_UNREACHABLE

    asyncio.run(run())


def test_through_a_proxy_with_a_password(tmp_path: Path) -> None:
    seen: list[bytes] = []

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        seen.append(head)
        host, _, port = head.split()[1].decode().partition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")

        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))

    async def over_sockets(ca_file: Path, context: ssl.SSLContext) -> None:
        server = ReplayServer(parse_script("steps: [{items: [{message: over the wire}]}]\nrepeat_last: true"))
        await server.start()
        inside = int(server.base_url.rpartition(":")[2].partition("/")[0])
        async with listening(partial(relay, inside), context) as port, listening(tunnel) as proxy:
            config = ProviderConfig(
                base_url=f"https://127.0.0.1:{port}/v1",
                ca_file=str(ca_file),
                proxy=f"http://user:secret@127.0.0.1:{proxy}",
                supports_websockets=True,
            )
            async with ResponsesClient(config) as client:
                assert [await say(client) for _ in range(3)] == ["over the wire"] * 3
            assert {entry.wire for entry in server.log.all()} == {"websocket"}
            assert server.upgrades == 1
        await server.close()

    async def run() -> None:
        ca_file, context = certificate(tmp_path)
        await over_sockets(ca_file, context)
        async with listening(answer, context) as port, listening(tunnel) as proxy:
            config = ProviderConfig(
                base_url=f"https://127.0.0.1:{port}/v1", ca_file=str(ca_file), proxy=f"http://user:secret@127.0.0.1:{proxy}"
            )
            async with ResponsesClient(config) as client:
                assert await say(client) == "over the wire"
        assert b"proxy-authorization: basic dxnlcjpzzwnyzxq=" in seen[0].lower()

    asyncio.run(run())


def test_a_connection_that_the_server_closed_while_idle_is_not_used_again() -> None:
    connections = 0

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        await reader.readexactly(length)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY)
        await writer.drain()
        writer.close()

    async def run() -> None:
        async with (
            listening(once) as port,
            ResponsesClient(ProviderConfig(base_url=f"http://127.0.0.1:{port}/v1", request_retries=1)) as client,
        ):
            assert [await say(client) for _ in range(3)] == ["over the wire"] * 3
        assert connections == 3

    asyncio.run(run())
