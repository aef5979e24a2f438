"""pytest fixtures around the replay model. Use: `pytest_plugins = ["patchyard.testing.replay_fixtures"]` in conftest.py."""

from collections.abc import Iterator

import pytest

from patchyard.testing.replay_model import ReplayModel


@pytest.fixture
def replay_model() -> Iterator[ReplayModel]:
    """A model to be scripted by the test; at its end violations, unexpected requests and unused responses fail the test."""
    model = ReplayModel()
    try:
        yield model
    except BaseException:
        model.close(check=False)
        raise
    model.close()


@pytest.fixture
def unchecked_replay_model() -> Iterator[ReplayModel]:
    """Like `replay_model`, for tests that look at violations themselves."""
    model = ReplayModel()
    try:
        yield model
    finally:
        model.close(check=False)
