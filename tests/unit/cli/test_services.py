import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from patchyard.cli.errors import AlreadyRunning, StartFailed
from patchyard.cli.services import embedded_redis, supervisor
from patchyard.cli.services.embedded_redis import check_attached, find_server_binary, write_configuration
from patchyard.cli.services.home import ServiceHome, ServiceState, last_lines
from patchyard.cli.services.identity import end_process, identify, read_pid_file, write_pid_file
from patchyard.cli.services.process import ManagedProcess, ProcessSpec
from patchyard.cli.services.resp import RespError, ask, is_alive
from tests.waiting import WAIT_S

STATE = ServiceState(pid=1, url="http://127.0.0.1:7400", version="0", workers=1, redis="started", started_at=1)


def test_a_new_home_is_private_and_gets_one_token(tmp_path: Path) -> None:
    home = ServiceHome(tmp_path / "h")
    home.prepare()
    token = home.token_file.read_text()
    home.token_file.chmod(0o644)
    home.prepare()
    assert home.token_file.read_text() == token
    assert len(token.strip()) >= 32
    modes = [path.stat().st_mode & 0o777 for path in (home.root, home.run, home.logs, home.redis_dir, home.token_file)]
    assert modes == [0o700, 0o700, 0o700, 0o700, 0o600]


def test_a_second_supervisor_is_told_about_the_first(tmp_path: Path) -> None:
    home = ServiceHome(tmp_path)
    home.prepare()
    assert not home.is_locked()
    with home.lock():
        home.write_state(STATE)
        assert home.is_locked()
        assert home.supervisor_pid() == os.getpid()
        with pytest.raises(AlreadyRunning) as second, home.lock():
            pass
        assert second.value.url == STATE.url
        assert str(os.getpid()) in second.value.message
    assert not home.is_locked()
    assert home.state() is None


def test_a_full_disk_is_said_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("patchyard.cli.services.home._MIN_FREE_BYTES", 1 << 60)
    with pytest.raises(StartFailed, match="is full") as full:
        ServiceHome(tmp_path).prepare()
    assert "PATCHYARD_HOME" in str(full.value.remedy)


def test_a_home_whose_socket_path_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="too long"):
        ServiceHome(tmp_path / ("x" * 100)).prepare()


def test_a_home_that_can_not_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartFailed, match="can't be used"):
        ServiceHome(tmp_path / "file" / "h").prepare()


def test_a_reused_pid_is_not_taken_for_the_process_that_had_it(tmp_path: Path) -> None:
    file = tmp_path / "x.pid"
    with subprocess.Popen(["sleep", "60"]) as process:
        write_pid_file(file, process.pid)
        identity = read_pid_file(file)
        assert identity is not None
        assert identity.pid == process.pid
        file.write_text(f"{process.pid} 12345\n")
        assert read_pid_file(file) is None
        waiter = threading.Thread(target=process.wait)
        waiter.start()
        end_process(identity, grace_s=WAIT_S)
        waiter.join()
    assert identify(process.pid) is None
    file.write_text("nonsense")
    assert read_pid_file(file) is None


@contextmanager
def server(path: Path, reply: bytes) -> Iterator[None]:
    """Answers one connection with fixed bytes."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


def test_a_socket_is_alive_only_if_a_redis_answers(short_path: Path) -> None:
    assert not is_alive(short_path / "none")
    with server(short_path / "a", b"+PONG\r\n"):
        assert is_alive(short_path / "a")
    with server(short_path / "b", b"HTTP/1.1 400 Bad Request\r\n"):
        assert not is_alive(short_path / "b")
    with server(short_path / "c", b""):
        assert not is_alive(short_path / "c")


def test_replies_of_every_kind_are_read(short_path: Path) -> None:
    reply = b"+OK\r\n:5\r\n$3\r\nabc\r\n$-1\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n"
    with server(short_path / "a", reply):
        assert ask(short_path / "a", *[["PING"]] * 5) == ["OK", 5, "abc", None, ["a", "b"]]
    with server(short_path / "b", b"-NOAUTH no\r\n"), pytest.raises(RespError, match="NOAUTH"):
        ask(short_path / "b", ["PING"])


def answer(version: str, *settings: tuple[str, str]) -> bytes:
    info = f"redis_version:{version}\r\n".encode()
    parts = [b"$%d\r\n%s\r\n" % (len(info), info)]
    for name, value in settings:
        parts.append(b"*2\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(name), name.encode(), len(value), value.encode()))
    return b"".join(parts)


GOOD = (("appendonly", "yes"), ("appendfsync", "always"), ("maxmemory-policy", "noeviction"))


def test_a_redis_that_was_there_must_keep_its_word(short_path: Path) -> None:
    with server(short_path / "a", answer("7.0.15", *GOOD)):
        check_attached(short_path / "a", allow_volatile=False)
    bad = (GOOD[0], ("appendfsync", "everysec"), ("maxmemory-policy", "allkeys-lru"))
    with server(short_path / "b", answer("7.0.15", *bad)), pytest.raises(StartFailed) as refused:
        check_attached(short_path / "b", allow_volatile=False)
    assert "appendfsync is everysec" in refused.value.message
    assert "CONFIG SET appendfsync always; CONFIG SET maxmemory-policy noeviction" in str(refused.value.remedy)
    with server(short_path / "c", answer("7.0.15", *bad)):
        check_attached(short_path / "c", allow_volatile=True)
    with server(short_path / "d", answer("6.2.0", *GOOD)), pytest.raises(StartFailed, match="version is 6"):
        check_attached(short_path / "d", allow_volatile=False)


def fake_server(folder: Path, name: str, version: str) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=0'\n")
    program.chmod(0o755)


def test_the_server_is_looked_for_in_a_fixed_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(embedded_redis.shutil, "which", lambda name: str(path) if (path := tmp_path / name).exists() else None)
    monkeypatch.setattr(embedded_redis.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(StartFailed, match="no Redis or Valkey server"):
        find_server_binary()
    fake_server(tmp_path, "redis-server", "6.2.1")
    with pytest.raises(StartFailed, match=r"older than 7\.0"):
        find_server_binary()
    fake_server(tmp_path, "redis-server", "7.0.15")
    assert find_server_binary().name == "redis-server"
    fake_server(tmp_path, "valkey-server", "9.1.2")
    assert find_server_binary().name == "valkey-server"


@pytest.mark.parametrize("answers", [True, False], ids=["reads its journal", "hangs"])
def test_no_second_server_beside_one_that_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], answers: bool
) -> None:
    home = ServiceHome(tmp_path / "h")
    home.prepare()
    asked: list[Path] = []

    def alive(path: Path) -> bool:
        asked.append(path)
        return answers and len(asked) > 2

    monkeypatch.setattr(supervisor, "is_alive", alive)
    monkeypatch.setattr(supervisor, "_REDIS_START_S", WAIT_S if answers else 0)
    with subprocess.Popen(["sleep", "600"]) as process:
        write_pid_file(home.run / "redis.pid", process.pid)
        waiter = threading.Thread(target=process.wait)
        waiter.start()
        found = asyncio.run(supervisor._redis_of_before(home))
        assert "waited for" in capfd.readouterr().err or not answers
        assert identify(process.pid) == found, "it is taken over, or gone"
        assert (found is not None) == answers
        process.kill()
        waiter.join()
    assert asyncio.run(supervisor._redis_of_before(home)) is None


def test_the_configuration_keeps_what_was_accepted(tmp_path: Path) -> None:
    home = ServiceHome(tmp_path / 'with "quotes"')
    home.prepare()
    text = write_configuration(home).read_text()
    for line in ("port 0", "appendonly yes", "appendfsync always", "maxmemory-policy noeviction", "unixsocketperm 700"):
        assert line in text.splitlines()
    assert r'with \"quotes\"/redis.sock"' in text


def spec(*code: str, **fields: object) -> ProcessSpec:
    async def ready(process: ManagedProcess) -> bool:
        return "ready" in process.log_tail()

    values = {"name": "x", "argv": [sys.executable, "-c", "\n".join(code)], "ready": ready, "remedy": "mend it"}
    return ProcessSpec(**{**values, **fields})  # type: ignore[arg-type]


def test_a_process_that_dies_while_starting_shows_its_last_words(tmp_path: Path) -> None:
    home = ServiceHome(tmp_path)
    home.prepare()

    async def run() -> None:
        process = ManagedProcess(spec("print('no such luck'); raise SystemExit(7)"), home)
        await process.start()
        with pytest.raises(StartFailed, match="exit code 7") as failed:
            await process.wait_ready()
        assert failed.value.details == "no such luck"
        assert failed.value.remedy == "mend it"
        await process.stop()

    asyncio.run(run())


def test_a_crashed_process_is_started_again_and_a_stopped_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("patchyard.cli.services.process._FIRST_RESTART_S", 0.01)
    home = ServiceHome(tmp_path)
    home.prepare()

    async def run() -> None:
        process = ManagedProcess(spec("print('ready', flush=True)", "import time", "time.sleep(60)"), home)
        await process.start()
        await process.wait_ready()
        keeper = asyncio.create_task(process.keep_running())
        first = process.pid
        assert first is not None
        os.kill(first, 9)
        async with asyncio.timeout(WAIT_S):
            while process.pid in (None, first):
                await asyncio.sleep(0)
        await process.wait_ready()
        await process.stop()
        await asyncio.wait_for(keeper, WAIT_S)
        assert process.pid is None
        assert list(home.run.glob("*.pid")) == []

    asyncio.run(run())


def test_a_process_that_does_not_listen_is_killed_with_its_children(tmp_path: Path) -> None:
    home = ServiceHome(tmp_path)
    home.prepare()

    async def run() -> None:
        code = (
            "import signal, subprocess, time",
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
            "child = subprocess.Popen(['sleep', '60'])",
            "print('ready', child.pid, flush=True)",
            "time.sleep(60)",
        )
        process = ManagedProcess(spec(*code, stop_timeout_s=0.2), home)
        await process.start()
        await process.wait_ready()
        child = int(process.log_tail().split()[1])
        assert identify(child) is not None
        await process.stop()
        async with asyncio.timeout(WAIT_S):
            while identify(child) is not None:
                await asyncio.sleep(0)

    asyncio.run(run())


def test_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    assert last_lines(log) == ""
    log.write_text("\n".join(str(n) for n in range(100)))
    assert last_lines(log, 3) == "97\n98\n99"
    assert last_lines(log, 3, since=len(log.read_text()) - 2) == "99"
