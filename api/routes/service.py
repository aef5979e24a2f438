"""What the service says about itself."""

from fastapi import APIRouter, Request

from api.auth import Authenticated
from api.deps import deps_of
from api.doctor import run_doctor
from api.guard import MAX_BODY_BYTES
from patchyard.adapters.queue import ORDINARY_PLACES
from patchyard.protocol.service import DoctorReport, ServiceInfo, ServiceLimits

router = APIRouter(prefix="/v1", tags=["service"])


@router.get("/info", summary="Who answers, and what this token may do")
async def info(request: Request, caller: Authenticated) -> ServiceInfo:
    """Version, default model, tenant of the token, limits."""
    settings = deps_of(request).settings
    return ServiceInfo(
        version=request.app.version,
        model=settings.model,
        tenant_id=caller.tenant_id,
        local_paths=caller.local,
        limits=ServiceLimits(
            max_upload_bytes=settings.max_upload_bytes,
            max_body_bytes=MAX_BODY_BYTES,
            waiting_submissions=ORDINARY_PLACES,
        ),
    )


@router.get("/doctor", summary="Checks of the service's machine")
async def doctor(_caller: Authenticated) -> DoctorReport:
    """Engine, Redis durability, store, model, image, versions: each with what to do. Takes seconds."""
    return await run_doctor()
