"""The Celery app. Celery only rings the doorbell: what runs, and whether it ran, is decided in Redis by the queue core.

`celery -A workers.app worker` finds `app` here; it is made when it is first asked for, so importing this module does nothing.
"""

import sys
from typing import Any

from celery import Celery

from patchyard.settings import Settings, load
from patchyard.settings_file import complaint

from . import signals, turns
from .broker import configuration

_app: Celery | None = None


def make_app(settings: Settings) -> Celery:
    """A Celery app with our two tasks and the signals that open and close the worker."""
    app = Celery("patchyard")
    app.conf.update(configuration(settings))
    turns.register(app)
    signals.connect(settings)
    return app


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(name)
    global _app
    if _app is None:
        try:
            _app = make_app(load())
        except ValueError as error:
            sys.exit(f"worker: the settings are wrong: {complaint(error)}")
    return _app
