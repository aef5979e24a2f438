"""The doorbell's place in Redis: what API and workers must name alike. No Celery here: the API imports none at its start."""

from urllib.parse import parse_qsl, urlsplit

TURNS = "turns"
"""Celery queue of doorbells."""
MAINTENANCE = "maintenance"
"""Celery queue of upkeep that somebody asks for."""
RUN_NEXT_TURN = "patchyard.run_next_turn"
RUN_MAINTENANCE = "patchyard.run_maintenance"
KEY_PREFIX = "py:celery:"
"""Prefix of Celery's own keys, apart from the queue core's."""


def broker_url(redis_url: str) -> str:
    """Our Redis URL as Celery's transport names it: a unix socket has a scheme of its own there."""
    parts = urlsplit(redis_url)
    if parts.scheme != "unix":
        return redis_url
    database = dict(parse_qsl(parts.query)).get("db", "0")
    user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    return f"redis+socket://{user}{parts.path}?virtual_host={database}"
