"""How long tests wait for what should simply happen.

A slow and loaded machine must not fail a test, so the wait is long; pytest's own limit (pyproject.toml) is longer still and
ends what hangs. What has to be quick is shown by what happened and in which order, or it is measured in bench/.
"""

import threading
import time
from collections.abc import Callable

WAIT_S = 60.0
"""For one thing that should happen; on a quiet machine it takes milliseconds."""
PROCESS_S = 180.0
"""For a program that is started and runs to its end: it loads its libraries first."""
_LOOK_EVERY_S = 0.05


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait for another process, which gives no other sign than that something holds. AssertionError: it never did."""
    until, pause = time.monotonic() + WAIT_S, threading.Event()
    while not condition():
        assert time.monotonic() < until, f"not within {WAIT_S:.0f} s: {what}"
        pause.wait(_LOOK_EVERY_S)
