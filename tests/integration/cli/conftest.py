from collections.abc import Iterator

import pytest

from tests.integration.cli.service import Home, home


@pytest.fixture
def fresh() -> Iterator[Home]:
    """A home in which nothing runs yet."""
    with home() as here:
        yield here


@pytest.fixture(scope="module")
def running() -> Iterator[Home]:
    """A service without workers, shared by the tests of a module: tasks stay queued."""
    with home() as here:
        here.up()
        yield here
