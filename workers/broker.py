"""Celery's settings in a worker."""

from typing import Any

from patchyard.adapters.queue.broker import KEY_PREFIX, MAINTENANCE, RUN_MAINTENANCE, RUN_NEXT_TURN, TURNS, broker_url
from patchyard.settings import Settings


def configuration(settings: Settings) -> dict[str, Any]:
    """Celery's settings, with the reason of each that matters."""
    return {
        "broker_url": broker_url(settings.effective_redis_url),
        "broker_transport_options": {
            "visibility_timeout": 60,  # covers only bells that were taken and not started; a lost bell is rung again anyway
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
            "socket_timeout": 10,
            "socket_connect_timeout": 2,
            "health_check_interval": 10,
            "global_keyprefix": KEY_PREFIX,
        },
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,  # a worker outlives any outage of the broker
        "worker_cancel_long_running_tasks_on_connection_loss": False,  # the lease decides who runs a turn
        "task_acks_late": False,  # redelivery would run a turn twice; a lost bell costs a second
        "worker_disable_prefetch": True,
        "worker_prefetch_multiplier": 1,
        "task_ignore_result": True,
        "task_default_queue": TURNS,
        "task_routes": {RUN_NEXT_TURN: {"queue": TURNS}, RUN_MAINTENANCE: {"queue": MAINTENANCE}},
        "task_serializer": "json",
        "accept_content": ["json"],
        "worker_pool": "threads",
        "worker_concurrency": settings.worker_concurrency,
        "worker_hijack_root_logger": False,
        "worker_send_task_events": False,
        "worker_enable_remote_control": True,
        "worker_proc_alive_timeout": 60,
        "enable_utc": True,
    }
