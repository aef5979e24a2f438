"""Celery's signals: where the worker of a process begins and ends."""

import logging
import os
from typing import Any

from celery import signals

from patchyard.settings import Settings

from . import process

log = logging.getLogger(__name__)

_UID = "patchyard"


def connect(settings: Settings) -> None:
    """Attach the worker's life to Celery's. Calling it again replaces the settings."""

    def open_worker(**_: Any) -> None:
        try:
            process.start(settings)
        except Exception as error:
            # Celery swallows what its signals raise and would go on without a worker behind it.
            log.critical("the worker does not start: %s", error, exc_info=log.isEnabledFor(logging.DEBUG))
            logging.shutdown()
            os._exit(1)

    def drain(**_: Any) -> None:
        process.begin_drain()

    def close_worker(**_: Any) -> None:
        process.stop()

    def own_logging(**_: Any) -> None:
        """Connected so that Celery leaves the root logger alone; `observability.setup` has it."""

    for signal, receiver in (
        (signals.setup_logging, own_logging),
        (signals.worker_init, open_worker),
        (signals.worker_shutting_down, drain),
        (signals.worker_shutdown, close_worker),
    ):
        signal.disconnect(dispatch_uid=_UID)
        signal.connect(receiver, weak=False, dispatch_uid=_UID)
