"""What only S3 does."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError, ProfileNotFound

from patchyard.adapters.store import ObjectExists, ObjectMissing, StoreError, StoreMisconfigured, StoreUnavailable
from patchyard.adapters.store._s3_errors import translate, translate_client
from patchyard.adapters.store.s3 import S3Store
from tests.servers_s3 import CREDENTIALS, s3_server


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        patch.setenv("NO_PROXY", "127.0.0.1")
        with s3_server("unit") as url:
            yield url


def test_a_bucket_that_is_not_there_is_told(endpoint: str) -> None:
    async def run() -> None:
        store = S3Store("nowhere", endpoint_url=endpoint)
        with pytest.raises(StoreMisconfigured, match=r"'nowhere' does not exist.*PATCHYARD_STORE_URL"):
            await store.check()
        with pytest.raises(StoreMisconfigured, match="'nowhere' does not exist"):
            await store.list("")
        await store.close()

    asyncio.run(run())


def test_a_server_that_is_not_there_is_told() -> None:
    with socket.socket() as placeholder:
        placeholder.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{placeholder.getsockname()[1]}"

        async def run() -> None:
            store = S3Store("unit", endpoint_url=url, attempts=1)
            with pytest.raises(StoreUnavailable, match=f"{url}.*PATCHYARD_S3_ENDPOINT_URL"):
                await store.get("a")
            await store.close()

        with pytest.MonkeyPatch.context() as patch:
            for name, value in CREDENTIALS.items():
                patch.setenv(name, value)
            patch.setenv("NO_PROXY", "127.0.0.1")
            asyncio.run(run())


def test_a_broken_upload_leaves_no_parts(endpoint: str) -> None:
    async def broken() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * (8 << 20)
        raise ConnectionResetError

    async def run() -> None:
        store = S3Store("unit", prefix="some/prefix", endpoint_url=endpoint)
        with pytest.raises(ConnectionResetError):
            await store.put("big", broken())
        await store.close()

    asyncio.run(run())
    client = boto3.session.Session().client("s3", endpoint_url=endpoint)
    assert client.list_multipart_uploads(Bucket="unit").get("Uploads", []) == []
    client.close()


def test_a_prefix_is_part_of_the_name_and_not_of_the_key(endpoint: str) -> None:
    async def run() -> None:
        store = S3Store("unit", prefix="team/patchyard", endpoint_url=endpoint)
        await store.put("a/b", b"x")
        assert (await store.list("")).keys == ("a/b",)
        whole = S3Store("unit", endpoint_url=endpoint)
        assert await whole.get("team/patchyard/a/b") == b"x"
        await store.close()
        await whole.close()
        await whole.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("code", "status", "kind", "message"),
    [
        ("NoSuchKey", 404, ObjectMissing, "'the/key'"),
        ("404", 404, ObjectMissing, "'the/key'"),
        ("PreconditionFailed", 412, ObjectExists, "'the/key'"),
        ("ConditionalRequestConflict", 409, ObjectExists, "'the/key'"),
        ("NoSuchBucket", 404, StoreMisconfigured, "Create it"),
        ("InvalidAccessKeyId", 403, StoreMisconfigured, "AWS_ACCESS_KEY_ID"),
        ("SignatureDoesNotMatch", 403, StoreMisconfigured, "AWS_SECRET_ACCESS_KEY"),
        ("AccessDenied", 403, StoreMisconfigured, "s3:PutObject"),
        ("PermanentRedirect", 301, StoreMisconfigured, "AWS_REGION"),
        ("SlowDown", 503, StoreUnavailable, "SlowDown"),
        ("", 502, StoreUnavailable, "502"),
        ("XMinioStorageFull", 507, StoreMisconfigured, "full"),
        ("MalformedXML", 400, StoreMisconfigured, "MalformedXML"),
    ],
)
def test_answers_become_errors_with_a_remedy(code: str, status: int, kind: type[StoreError], message: str) -> None:
    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    error = translate_client(ClientError(answer, "PutObject"), key="the/key", bucket="b")  # type: ignore[arg-type]
    assert type(error) is kind
    assert message in error.info.message
    assert error.retryable is (kind is StoreUnavailable)


def test_missing_credentials_and_profiles_are_told() -> None:
    assert "AWS_ACCESS_KEY_ID" in translate(NoCredentialsError(), endpoint=None).info.message
    profile = translate(ProfileNotFound(profile="p"), endpoint=None)
    assert isinstance(profile, StoreMisconfigured)
    away = translate(EndpointConnectionError(endpoint_url="x"), endpoint="http://s3.local")
    assert isinstance(away, StoreUnavailable)
    assert "http://s3.local" in away.info.message
