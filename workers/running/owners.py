"""Whose boxes they are."""

import time
from dataclasses import dataclass

from patchyard.adapters.sandbox import BoxLabels


@dataclass(frozen=True)
class Owner:
    """A claim, as far as its boxes care."""

    tenant_id: str
    thread_id: str
    turn_id: str
    worker_id: str
    fence: int


def box_labels(owner: Owner, kind: str, lease_ttl_s: float) -> BoxLabels:
    """Labels of a box; `kind`: turn, verify or setup."""
    return BoxLabels(
        tenant=owner.tenant_id,
        thread=owner.thread_id,
        turn=owner.turn_id,
        worker=owner.worker_id,
        kind=kind,
        lease_until_ms=int((time.time() + lease_ttl_s) * 1000),
    )
