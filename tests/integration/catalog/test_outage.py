"""A PostgreSQL server that goes away and comes back, and many processes on one SQLite file."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from patchyard.adapters.catalog import Catalog, CatalogUnavailable
from tests.rollout_lines import verified_task
from tests.servers_postgres import postgres_bin, postgres_server
from tests.waiting import PROCESS_S

ROOT = Path(__file__).parents[3]

_TOKENS = """
import asyncio, hashlib, sys
from patchyard.adapters.catalog import Catalog

async def main(url, me):
    catalog = Catalog(url)
    await asyncio.gather(*(
        catalog.create_token("default", me, hashlib.sha256(f"{me} {n}".encode()).hexdigest()) for n in range(40)
    ))
    await catalog.close()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.postgres
def test_a_server_that_comes_back_is_used_again() -> None:
    if postgres_bin() is None:
        pytest.skip("no PostgreSQL server programs: apt-get install postgresql")
    thread = verified_task()

    async def run() -> None:
        with postgres_server() as server:
            catalog = Catalog(server.new_database("outage"))
            await catalog.migrate()
            await catalog.apply_lines("default", thread.thread_id, thread.lines[:3])
            server.stop()
            for _ in range(2):
                with pytest.raises(CatalogUnavailable) as caught:
                    await catalog.apply_lines("default", thread.thread_id, thread.lines[3:])
                assert caught.value.retryable
            server.start()
            await catalog.apply_lines("default", thread.thread_id, thread.lines[3:])
            assert await catalog.applied_through("default", thread.thread_id) == len(thread.lines) - 1
            await catalog.close()

    asyncio.run(run())


def test_many_processes_write_to_one_sqlite_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/catalog.db"

    async def prepare() -> None:
        catalog = Catalog(url)
        await catalog.migrate()
        await catalog.close()

    async def count() -> int:
        catalog = Catalog(url)
        found = await catalog.list_tokens("default")
        await catalog.close()
        return len(found)

    asyncio.run(prepare())
    processes = [subprocess.Popen([sys.executable, "-c", _TOKENS, url, str(me)], cwd=ROOT) for me in range(3)]
    assert [process.wait(timeout=PROCESS_S) for process in processes] == [0, 0, 0]
    assert asyncio.run(count()) == 120
