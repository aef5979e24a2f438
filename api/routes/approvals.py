"""Approvals that are kept for repositories."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from api.auth import Authenticated
from api.deps import deps_of
from patchyard.protocol.approvals import ApprovalListResponse, ApprovalView

router = APIRouter(prefix="/v1/approvals", tags=["approvals"])


@router.get("", summary="List approvals, newest first", response_model=ApprovalListResponse)
async def list_approvals(
    request: Request,
    caller: Authenticated,
    repository: Annotated[str | None, Query(max_length=2048, description="Its URL (`.git` or not) or path.")] = None,
    revoked: Annotated[bool, Query(description="Also those that count no more.")] = False,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """What people allowed with `accept_for_session` or a prefix rule: it counts for every task on its repository."""
    page = await deps_of(request).catalog.list_approvals(
        caller.tenant_id, repository=repository, revoked=revoked, cursor=cursor, limit=limit
    )
    return Response(page.model_dump_json(), media_type="application/json")


@router.delete("/{approval_id}", summary="Revoke an approval", response_model=ApprovalView)
async def revoke(request: Request, approval_id: str, caller: Authenticated) -> Response:
    """It counts no more, nor does the same from others on this repository: tasks ask again. Twice is harmless."""
    approval = await deps_of(request).catalog.revoke_approval(caller.tenant_id, approval_id, by=caller.name)
    return Response(approval.model_dump_json(), media_type="application/json")
