import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers_postgres import new_database, postgres_bin, postgres_server

_NUMBER = itertools.count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    if postgres_bin() is None:
        pytest.skip("no PostgreSQL server programs: apt-get install postgresql")
    with postgres_server() as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/folder/catalog.db"
    return new_database(request.getfixturevalue("postgres"), f"c{next(_NUMBER)}")
