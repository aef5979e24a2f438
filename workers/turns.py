"""The Celery tasks. The doorbell carries no arguments: the claim decides which thread runs."""

import logging

from celery import Celery

from patchyard.adapters.queue.broker import RUN_MAINTENANCE, RUN_NEXT_TURN

from . import process

log = logging.getLogger(__name__)


def register(app: Celery) -> None:
    """Add the tasks to an app."""

    @app.task(name=RUN_NEXT_TURN, ignore_result=True)
    def run_next_turn() -> None:
        """Claim a thread, run it, and look for the next until there is none."""
        worker = process.current()
        try:
            while worker.bridge.run(worker.runner.run_next()):
                pass
        except Exception:
            log.exception("a turn ended with an error that nothing handled; its lease decides who goes on")

    @app.task(name=RUN_MAINTENANCE, ignore_result=True)
    def run_maintenance() -> None:
        """One round of upkeep now, whoever the leader is."""
        worker = process.current()
        worker.bridge.run(worker.maintenance.round())
