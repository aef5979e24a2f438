"""Artefacts: bundles, archives and overlays up; patches and logs down."""

import hashlib
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from api.auth import Authenticated
from api.deps import deps_of
from api.errors import refuse
from api.sources import artefact_key
from patchyard.adapters.store import ObjectMissing, ObjectStore, stream_object
from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.ids import new_id
from patchyard.protocol.tasks import ArtefactView

router = APIRouter(prefix="/v1/artefacts", tags=["artefacts"])

_RAW_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.post("", status_code=201, summary="Upload an artefact", openapi_extra=_RAW_BODY)
async def upload(request: Request, caller: Authenticated) -> ArtefactView:
    """The raw body becomes an artefact; it goes to the store piece by piece."""
    artefact_id = new_id()
    digest = hashlib.sha256()
    size = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal size
        async for piece in request.stream():
            digest.update(piece)
            size += len(piece)
            yield piece

    await deps_of(request).store.put(artefact_key(caller.tenant_id, artefact_id), pieces())
    return ArtefactView(artefact_id=artefact_id, bytes=size, sha256=digest.hexdigest())


@router.get("/{artefact_id}", summary="Download an artefact", response_class=StreamingResponse)
async def download(request: Request, artefact_id: str, caller: Authenticated) -> Response:
    """The bytes as they were uploaded."""
    return await send_artefact(deps_of(request).store, caller.tenant_id, artefact_id, "application/octet-stream")


async def send_artefact(store: ObjectStore, tenant_id: str, artefact_id: str, media_type: str) -> Response:
    """A response with an artefact's bytes. ApiError not_found."""
    key = artefact_key(tenant_id, artefact_id)
    try:
        size = (await store.get_range(key, 0, 1)).size
    except ObjectMissing:
        raise refuse(ErrorCode.NOT_FOUND, f"There is no artefact {artefact_id[:100]!r}.") from None
    # Content from outside must never be taken for a page of this service.
    headers = {"content-length": str(size), "content-disposition": "attachment", "x-content-type-options": "nosniff"}
    return StreamingResponse(stream_object(store, key), media_type=media_type, headers=headers)
