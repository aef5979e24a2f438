import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose sockets fit into the 107 bytes that the kernel allows."""
    folder = Path(tempfile.mkdtemp(prefix="pyc"))
    yield folder
    shutil.rmtree(folder)
