"""Who asks: a bearer token, known to the catalog by its SHA-256, or the machine's own token."""

import hashlib
import hmac
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from patchyard.adapters.catalog import Catalog
from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.ids import DEFAULT_TENANT

from .errors import refuse

_REMEMBER_S = 10.0
"""How long a look-up is trusted: a revoked token is refused this late at most."""
_REMEMBER_MAX = 10_000


@dataclass(frozen=True)
class Caller:
    """Whose token a request carries."""

    tenant_id: str
    local: bool
    """True: the user of this machine, who may name repositories by local paths."""
    name: str = "local"
    """Of the token."""


class TokenBook:
    """Finds callers by their tokens. Good look-ups are remembered briefly; wrong tokens never are."""

    def __init__(self, catalog: Catalog, local_token: str | None) -> None:
        self._catalog = catalog
        self._local = _sha256(local_token) if local_token else None
        self._known: OrderedDict[str, tuple[float, Caller]] = OrderedDict()

    async def find(self, token: str) -> Caller | None:
        """The caller; None: nobody has this token. CatalogError."""
        digest = _sha256(token)
        if self._local is not None and hmac.compare_digest(digest, self._local):
            return Caller(DEFAULT_TENANT, local=True)
        known = self._known.get(digest)
        if known is not None and known[0] > time.monotonic():
            return known[1]
        record = await self._catalog.find_token(digest)
        if record is None:
            self._known.pop(digest, None)
            return None
        caller = Caller(record.tenant_id, local=record.local, name=record.name)
        self._known[digest] = (time.monotonic() + _REMEMBER_S, caller)
        self._known.move_to_end(digest)
        while len(self._known) > _REMEMBER_MAX:
            self._known.popitem(last=False)
        return caller


def _sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


_BEARER = HTTPBearer(auto_error=False, description="A token of the catalog, or the one in PATCHYARD_HOME/token.")


async def authenticate(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]
) -> Caller:
    """The caller of a request. 401 without a known bearer token."""
    if credentials is None or not credentials.credentials.strip():
        raise refuse(
            ErrorCode.UNAUTHORIZED,
            "This needs `Authorization: Bearer TOKEN`. On the service's own machine the token is in PATCHYARD_HOME/token.",
        )
    book: TokenBook = request.app.state.deps.tokens
    caller = await book.find(credentials.credentials.strip())
    if caller is None:
        raise refuse(ErrorCode.UNAUTHORIZED, "This token is unknown or was revoked. Ask for a new one.")
    return caller


Authenticated = Annotated[Caller, Depends(authenticate)]
