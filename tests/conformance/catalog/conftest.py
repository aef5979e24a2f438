import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers_postgres import PostgresServer, postgres_bin, postgres_server

_NUMBER = itertools.count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    if postgres_bin() is None:
        pytest.skip("no PostgreSQL server programs: apt-get install postgresql")
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/folder/catalog.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database(f"c{next(_NUMBER)}")
