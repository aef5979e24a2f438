"""What can go wrong with the catalog.

CatalogError               root; carries an ErrorInfo
├── CatalogUnavailable     the database is unreachable or busy; retry later
├── CatalogMisconfigured   wrong URL, credentials or schema version; a person must act
├── CatalogDiskFull        no space left for the database
├── NotFound               no such row of this tenant
└── InvalidCursor          the cursor does not belong to this list
"""

from patchyard.protocol.errors import ErrorCode, ErrorInfo


class CatalogError(Exception):
    """The catalog could not do what was asked."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.info = info

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later."""
        return self.info.retryable


class CatalogUnavailable(CatalogError):
    """The database is unreachable or busy. Running turns do not need it."""

    def __init__(self, reason: str) -> None:
        message = f"The catalog cannot be reached: {reason}. Check PATCHYARD_CATALOG_URL; running turns go on."
        super().__init__(ErrorInfo.of(ErrorCode.CATALOG_UNAVAILABLE, message))


class CatalogMisconfigured(CatalogError):
    """Waiting does not help: a person must change the configuration."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorInfo(code=ErrorCode.CATALOG_UNAVAILABLE, message=message, retryable=False))


class CatalogDiskFull(CatalogError):
    """No space left for the database."""

    def __init__(self) -> None:
        super().__init__(
            ErrorInfo.of(ErrorCode.DISK_FULL, "No space left for the catalog's database. Free disk space where it is.")
        )


class NotFound(CatalogError):
    """No such row of this tenant."""

    def __init__(self, kind: str, key: str) -> None:
        listed = "approvals" if kind == "approval" else "tasks"
        super().__init__(ErrorInfo.of(ErrorCode.NOT_FOUND, f"There is no {kind} {key[:100]!r}. See `patchyard {listed} list`."))


class InvalidCursor(CatalogError):
    """The cursor does not belong to this list."""

    def __init__(self) -> None:
        message = "The cursor does not belong to this list. Start again without it and keep the filters while paging."
        super().__init__(ErrorInfo.of(ErrorCode.INVALID_REQUEST, message))
