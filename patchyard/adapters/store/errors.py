"""What can go wrong with the object store.

StoreError                    root; carries an ErrorInfo
├── InvalidKey                the key is not one that every backend can hold
├── ObjectExists              `if_absent` and somebody was first
├── ObjectMissing             no such object
├── StoreDiskFull             no space left; retry after making room
├── StoreUnavailable          unreachable or overloaded; retry later
└── StoreMisconfigured        wrong bucket, credentials, folder or URL; a person must act
"""

from patchyard.protocol.errors import ErrorCode, ErrorInfo


class StoreError(Exception):
    """The object store could not do what was asked."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.info = info

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later."""
        return self.info.retryable


class InvalidKey(StoreError):
    """The key is not one that every backend can hold."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(ErrorInfo.of(ErrorCode.INVALID_REQUEST, f"{key[:200]!r} is not a valid object key: {reason}."))


class ObjectExists(StoreError):
    """An object with this key exists. After a retried request it may be the caller's own: compare before giving up."""

    def __init__(self, key: str) -> None:
        super().__init__(ErrorInfo.of(ErrorCode.CONFLICT, f"The object {key!r} exists already; read it instead of writing it."))
        self.key = key


class ObjectMissing(StoreError):
    """No object has this key."""

    def __init__(self, key: str) -> None:
        super().__init__(ErrorInfo.of(ErrorCode.NOT_FOUND, f"There is no object {key!r} in the store."))
        self.key = key


class StoreDiskFull(StoreError):
    """No space left."""

    def __init__(self, where: str) -> None:
        message = (
            f"No space left for objects in {where}. Free disk space there, or point PATCHYARD_STORE_URL at a larger store."
        )
        super().__init__(ErrorInfo.of(ErrorCode.DISK_FULL, message))


class StoreUnavailable(StoreError):
    """The store is unreachable or overloaded."""

    def __init__(self, what: str) -> None:
        super().__init__(ErrorInfo.of(ErrorCode.STORE_UNAVAILABLE, what))


class StoreMisconfigured(StoreError):
    """Waiting does not help: a person must change the configuration."""

    def __init__(self, what: str) -> None:
        super().__init__(ErrorInfo(code=ErrorCode.STORE_UNAVAILABLE, message=what, retryable=False))
