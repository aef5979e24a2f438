"""Object store: rollouts, artefacts and snapshots, in a folder or in S3.

`S3Store` is in `.s3`, imported only where it is used: it brings boto3, which costs memory and start-up time.
"""

from .errors import (
    InvalidKey,
    ObjectExists,
    ObjectMissing,
    StoreDiskFull,
    StoreError,
    StoreMisconfigured,
    StoreUnavailable,
)
from .filesystem import FilesystemStore
from .keys import check_key, check_prefix
from .opening import open_store
from .ports import Body, ObjectInfo, ObjectPage, ObjectSlice, ObjectStore, OpenStore, list_all, stream_object
from .segments import StoredSegments

__all__ = [
    "Body",
    "FilesystemStore",
    "InvalidKey",
    "ObjectExists",
    "ObjectInfo",
    "ObjectMissing",
    "ObjectPage",
    "ObjectSlice",
    "ObjectStore",
    "OpenStore",
    "StoreDiskFull",
    "StoreError",
    "StoreMisconfigured",
    "StoreUnavailable",
    "StoredSegments",
    "check_key",
    "check_prefix",
    "list_all",
    "open_store",
    "stream_object",
]
