"""From boto3's errors to the store's."""

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    InvalidConfigError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
)

from .errors import ObjectExists, ObjectMissing, StoreError, StoreMisconfigured, StoreUnavailable

_CREDENTIALS = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or a profile or role) for the processes of Patchyard"
_MISSING = frozenset({"404", "NoSuchKey", "NotFound"})
_BAD_CREDENTIALS = frozenset(
    {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "401", "TokenRefreshRequired"}
)
_OVERLOADED = frozenset({"SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "Throttling", "500", "503"})
_FULL = frozenset({"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "507"})


def is_missing(code: str) -> bool:
    """Whether an error code says that there is no such object."""
    return code in _MISSING


def range_is_outside(error: ClientError) -> bool:
    """Whether the range asked for begins behind the object's end."""
    return _code(error) in ("InvalidRange", "416")


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def translate_client(error: ClientError, *, key: str, bucket: str) -> StoreError:
    """The store's error for an answer of the server."""
    code = _code(error)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if is_missing(code):
        return ObjectMissing(key)
    if code in ("PreconditionFailed", "ConditionalRequestConflict") or status in (409, 412):
        return ObjectExists(key)
    if code == "NoSuchBucket":
        return StoreMisconfigured(
            f"The bucket {bucket!r} does not exist. Create it, or set PATCHYARD_STORE_URL to another one."
        )
    if code in _BAD_CREDENTIALS:
        return StoreMisconfigured(f"The credentials for bucket {bucket!r} were refused ({code}). {_CREDENTIALS}.")
    if code in ("AccessDenied", "403", "AllAccessDisabled"):
        return StoreMisconfigured(
            f"No right to use bucket {bucket!r} ({code}). Allow s3:GetObject, s3:PutObject, s3:DeleteObject, s3:ListBucket and "
            "s3:AbortMultipartUpload on it, and check that it exists."
        )
    if code in ("PermanentRedirect", "AuthorizationHeaderMalformed", "301", "IllegalLocationConstraintException"):
        return StoreMisconfigured(f"The bucket {bucket!r} is in another region. Set AWS_REGION to the bucket's region.")
    if code in _FULL:
        return StoreMisconfigured(f"The store behind bucket {bucket!r} is full ({code}). Make room or raise its quota.")
    if code in _OVERLOADED or status >= 500:
        return StoreUnavailable(f"The object store answered {code or status}, also when asked again. It is tried later.")
    return StoreMisconfigured(
        f"The object store refused the request ({code or status}). Check the bucket {bucket!r} and its rules."
    )


def translate(error: BotoCoreError, *, endpoint: str | None) -> StoreError:
    """The store's error for a request that got no answer."""
    match error:
        case NoCredentialsError() | PartialCredentialsError() | CredentialRetrievalError():
            return StoreMisconfigured(f"There are no credentials for S3. {_CREDENTIALS}.")
        case ProfileNotFound() | InvalidConfigError():
            return StoreMisconfigured(f"The AWS configuration cannot be used: {error}. Correct the profile or its name.")
        case _:
            where = endpoint or "AWS"
            return StoreUnavailable(
                f"The object store at {where} cannot be reached ({type(error).__name__}). Check the network and "
                "PATCHYARD_S3_ENDPOINT_URL; it is tried again."
            )
