"""Objects in S3, or in any server that speaks its protocol with conditional writes and suffix ranges."""

import asyncio
import builtins
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from boto3.session import Session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from ._s3_errors import is_missing, range_is_outside, translate, translate_client
from .bodies import pieces
from .errors import ObjectExists, ObjectMissing, StoreUnavailable
from .keys import check_key, check_prefix
from .ports import Body, ObjectInfo, ObjectPage, ObjectSlice

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

_THREADS = 16
"""Requests at once; each thread waits for the network, and as many connections are kept."""
_ATTEMPTS = 5
"""Tries of one request, with growing pauses: about ten seconds until a dead server is told."""
_PART = 8 << 20
"""Bytes of one part of a multipart upload; at most two parts are in memory. S3 allows 10,000 parts: 80 GB."""
_DELETE_AT_ONCE = 1000
"""Keys that S3 takes in one request."""
_LIST_AT_ONCE = 1000
"""Keys that S3 gives in one answer."""

_T = TypeVar("_T")


class S3Store:
    """ObjectStore in a bucket. Credentials and region come from where AWS tools look for them (environment, profile, role)."""

    def __init__(self, bucket: str, *, prefix: str = "", endpoint_url: str | None = None, attempts: int = _ATTEMPTS) -> None:
        self._bucket = bucket
        self._base = f"{check_key(prefix)}/" if prefix else ""
        self._endpoint_url = endpoint_url
        self._attempts = attempts
        self._executor = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="s3")
        self._client: S3Client | None = None
        self._client_lock = asyncio.Lock()

    async def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """See ObjectStore.put. More than one part (8 MiB) goes up as a multipart upload."""
        name = self._name(key)
        parts = pieces(data, _PART)
        first = await anext(parts, b"")
        second = await anext(parts, None) if len(first) == _PART else None
        if second is None:
            await self._run(key, partial(self._put_whole, name, first, if_absent=if_absent))
            return
        await self._put_parts(key, name, _chained(first, second, parts), if_absent=if_absent)

    async def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        name = self._name(key)

        def read(client: "S3Client") -> bytes:
            return client.get_object(Bucket=self._bucket, Key=name)["Body"].read()

        return await self._run(key, read)

    async def get_range(self, key: str, start: int = 0, length: int | None = None, *, suffix: int | None = None) -> ObjectSlice:
        """See ObjectStore.get_range."""
        name = self._name(key)
        if suffix == 0 or length == 0:
            size = await self._size(key)
            return ObjectSlice(b"", size if suffix == 0 else min(start, size), size)
        if suffix is not None:
            wanted = f"bytes=-{suffix}"
        else:
            wanted = f"bytes={start}-" if length is None else f"bytes={start}-{start + length - 1}"

        def read(client: "S3Client") -> ObjectSlice | None:
            try:
                answer = client.get_object(Bucket=self._bucket, Key=name, Range=wanted)
            except ClientError as error:
                if range_is_outside(error):
                    return None
                raise
            data = answer["Body"].read()
            return _slice(data, answer.get("ContentRange"), key)

        found = await self._run(key, read)
        if found is not None:
            return found
        size = await self._size(key)
        return ObjectSlice(b"", min(start, size), size)

    async def list(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> ObjectPage:
        """See ObjectStore.list."""
        check_prefix(prefix)
        found: builtins.list[ObjectInfo] = []
        while True:
            page = await self._list_once(prefix, after, min(limit - len(found), _LIST_AT_ONCE))
            found += page.objects
            if page.next_after is None or len(found) >= limit:
                return ObjectPage(tuple(found), page.next_after)
            after = page.next_after

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore.delete."""
        names = [self._name(key) for key in keys]
        for start in range(0, len(names), _DELETE_AT_ONCE):
            await self._run("", partial(self._delete_some, names[start : start + _DELETE_AT_ONCE]))

    async def check(self) -> None:
        """See OpenStore.check."""
        key = f"patchyard-check-{secrets.token_hex(8)}"
        await self.put(key, b"ok", if_absent=True)
        try:
            await self.get(key)
        finally:
            await self.delete([key])

    async def close(self) -> None:
        """See OpenStore.close."""
        await asyncio.to_thread(self._executor.shutdown)
        if self._client is not None:
            self._client.close()
            self._client = None

    # --- requests, in the executor ----------------------------------------------------------------

    async def _run(self, key: str, work: "Callable[[S3Client], _T]") -> _T:
        loop = asyncio.get_running_loop()
        try:
            async with self._client_lock:
                client = self._client
                if client is None:
                    client = await loop.run_in_executor(self._executor, self._connect)
                    self._client = client
            return await loop.run_in_executor(self._executor, work, client)
        except ClientError as error:
            raise translate_client(error, key=key, bucket=self._bucket) from error
        except BotoCoreError as error:
            raise translate(error, endpoint=self._endpoint_url) from error

    def _connect(self) -> "S3Client":
        config = Config(
            max_pool_connections=_THREADS,
            connect_timeout=5,
            read_timeout=30,
            retries={"mode": "standard", "total_max_attempts": self._attempts},
            # Servers that only resemble S3 know neither the newer checksums nor bucket names as host names.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path"} if self._endpoint_url else {},
        )
        # An own session: boto3's default one is shared by the whole process and not safe in threads.
        session = Session()
        region = session.region_name or "us-east-1"
        return session.client("s3", endpoint_url=self._endpoint_url, region_name=region, config=config)

    def _name(self, key: str) -> str:
        return self._base + check_key(key)

    def _put_whole(self, name: str, data: bytes, client: "S3Client", *, if_absent: bool) -> None:
        if if_absent:
            client.put_object(Bucket=self._bucket, Key=name, Body=data, IfNoneMatch="*")
        else:
            client.put_object(Bucket=self._bucket, Key=name, Body=data)

    async def _put_parts(self, key: str, name: str, parts: AsyncIterator[bytes], *, if_absent: bool) -> None:
        if if_absent and await self._exists(key):
            # Saves the upload; the condition that decides is on its last request.
            raise ObjectExists(key)
        upload = await self._run(key, lambda client: client.create_multipart_upload(Bucket=self._bucket, Key=name)["UploadId"])
        try:
            done: builtins.list[CompletedPartTypeDef] = []
            async for part in parts:
                number = len(done) + 1
                etag = await self._run(key, partial(self._put_part, name, upload, number, part))
                done.append({"PartNumber": number, "ETag": etag})
            await self._run(key, partial(self._complete, name, upload, done, if_absent=if_absent))
        except BaseException:
            # Shielded: parts that nobody completes cost money until somebody aborts them, also when we are cancelled.
            await asyncio.shield(self._abort(name, upload))
            raise

    def _put_part(self, name: str, upload: str, number: int, data: bytes, client: "S3Client") -> str:
        return client.upload_part(Bucket=self._bucket, Key=name, UploadId=upload, PartNumber=number, Body=data)["ETag"]

    def _complete(
        self, name: str, upload: str, parts: "builtins.list[CompletedPartTypeDef]", client: "S3Client", *, if_absent: bool
    ) -> None:
        if if_absent:
            client.complete_multipart_upload(
                Bucket=self._bucket, Key=name, UploadId=upload, MultipartUpload={"Parts": parts}, IfNoneMatch="*"
            )
        else:
            client.complete_multipart_upload(Bucket=self._bucket, Key=name, UploadId=upload, MultipartUpload={"Parts": parts})

    async def _abort(self, name: str, upload: str) -> None:
        def abort(client: "S3Client") -> None:
            try:
                client.abort_multipart_upload(Bucket=self._bucket, Key=name, UploadId=upload)
            except (ClientError, BotoCoreError):
                # The first error is the one to tell; a bucket rule for incomplete uploads clears what is left.
                return

        await self._run("", abort)

    async def _exists(self, key: str) -> bool:
        try:
            await self._size(key)
        except ObjectMissing:
            return False
        return True

    async def _size(self, key: str) -> int:
        name = self._name(key)
        return await self._run(key, lambda client: client.head_object(Bucket=self._bucket, Key=name)["ContentLength"])

    async def _list_once(self, prefix: str, after: str | None, limit: int) -> ObjectPage:
        skip = len(self._base)

        def read(client: "S3Client") -> ObjectPage:
            start_after = self._base + after if after is not None else ""
            answer = client.list_objects_v2(
                Bucket=self._bucket, Prefix=self._base + prefix, StartAfter=start_after, MaxKeys=limit
            )
            objects = tuple(
                ObjectInfo(item.get("Key", "")[skip:], item.get("Size", 0), _milliseconds(item.get("LastModified")))
                for item in answer.get("Contents", [])
            )
            more = answer.get("IsTruncated", False) and bool(objects)
            return ObjectPage(objects, objects[-1].key if more else None)

        return await self._run(prefix, read)

    def _delete_some(self, names: Sequence[str], client: "S3Client") -> None:
        answer = client.delete_objects(
            Bucket=self._bucket, Delete={"Objects": [{"Key": name} for name in names], "Quiet": True}
        )
        failed = [item for item in answer.get("Errors", []) if not is_missing(item.get("Code", ""))]
        if failed:
            first = failed[0]
            raise StoreUnavailable(
                f"{len(failed)} of {len(names)} objects could not be deleted, the first with {first.get('Code', 'an error')}. "
                "Check that the credentials allow s3:DeleteObject."
            )


async def _chained(first: bytes, second: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    yield second
    async for part in rest:
        yield part


def _milliseconds(moment: datetime | None) -> int:
    return int(moment.timestamp() * 1000) if moment is not None else 0


def _slice(data: bytes, content_range: str | None, key: str) -> ObjectSlice:
    # "bytes 5-9/20"; an empty object has no range, and a server that ignores ranges sends the whole object without it.
    if content_range is None and not data:
        return ObjectSlice(b"", 0, 0)
    if content_range is None:
        raise StoreUnavailable(f"The server ignored the byte range for {key!r}. It must support Range requests.")
    span, _, size = content_range.removeprefix("bytes ").partition("/")
    return ObjectSlice(data, int(span.partition("-")[0]), int(size))
