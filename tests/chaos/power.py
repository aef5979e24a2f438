"""A power cut: the server dies, and its append-only file loses what no completed fsync had covered."""

import shutil
import subprocess
from pathlib import Path

from tests.servers import RedisServer

SOURCE = Path(__file__).with_name("fsync_log.c")


def build_log(folder: Path) -> Path | None:
    """The preloaded library; None without a compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    library = folder / "fsync_log.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return library


def cut_power(server: RedisServer, log: Path) -> int:
    """Kill the server and cut its files; how many bytes were lost."""
    server.kill()
    durable: dict[str, int] = {}
    for line in log.read_text().splitlines():
        size, _, path = line.partition(" ")
        durable[path] = int(size)
    lost = 0
    for path in (server.folder / "appendonlydir").glob("*.incr.aof"):
        kept = durable.get(str(path.resolve()), 0)
        size = path.stat().st_size
        if size > kept:
            lost += size - kept
            with path.open("r+b") as file:
                file.truncate(kept)
    return lost
