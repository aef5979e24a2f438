"""What a Patchyard service says about itself: identity, readiness, checks, refusals, traces."""

from typing import Any, Literal

from pydantic import Field

from ._model import TolerantModel, WireModel
from .ids import TenantId


class ServiceLimits(WireModel):
    """Bounds that a client can plan with."""

    max_upload_bytes: int
    max_body_bytes: int
    """Largest JSON body."""
    waiting_submissions: int
    """Submissions that wait in one thread before it answers `queue_full`."""


class ServiceInfo(WireModel):
    """Answer of GET /v1/info."""

    name: Literal["patchyard"] = "patchyard"
    version: str
    model: str
    """Model of tasks that name none."""
    tenant_id: TenantId
    """Whose token asked."""
    local_paths: bool
    """Whether this token may name repositories by a path on the service's own machine."""
    limits: ServiceLimits


class ComponentState(WireModel):
    """One part that the API stands on."""

    name: str
    state: Literal["ok", "warning", "failed"]
    """warning: it works, but not as it should."""
    detail: str
    remedy: str | None = None


class Readiness(WireModel):
    """Answer of GET /readyz: 200 when ready, else 503."""

    ready: bool
    components: tuple[ComponentState, ...]


class CheckResult(WireModel):
    """One check of the doctor."""

    name: str
    status: Literal["ok", "warning", "failed"]
    detail: str
    remedy: str | None = None


class DoctorReport(WireModel):
    """Answer of GET /v1/doctor and of `python -m workers.doctor --json`."""

    ok: bool
    """No check failed."""
    checks: tuple[CheckResult, ...]


class Problem(TolerantModel):
    """An RFC 9457 refusal."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str = ""
    code: str = "internal"
    retryable: bool = False
    request_id: str | None = None
    details: dict[str, str] = Field(default_factory=dict)
    errors: tuple[dict[str, Any], ...] = ()
    """For `invalid_request`: `{field, message}` of each bad field."""


class StreamEnd(WireModel):
    """Data of the last frame of an event stream (`event: stream_end`)."""

    reason: Literal["turn_end", "shutdown", "error"]
    """shutdown and error: connect again with Last-Event-ID."""
    error: str | None = None
