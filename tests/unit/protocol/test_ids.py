from datetime import UTC, datetime

import pytest

from patchyard.protocol.errors import ErrorCode, ErrorInfo, is_retryable
from patchyard.protocol.ids import created_at, new_id


def test_an_id_carries_its_creation_time() -> None:
    assert created_at(new_id(1_790_000_000_123)) == datetime.fromtimestamp(1_790_000_000.123, tz=UTC)


def test_later_ids_sort_later() -> None:
    assert new_id(1_000) < new_id(1_001) < new_id(2_000)


def test_ids_of_one_millisecond_differ() -> None:
    assert len({new_id(1_000) for _ in range(1_000)}) == 1_000


def test_another_uuid_version_is_refused() -> None:
    with pytest.raises(ValueError, match="not a UUIDv7"):
        created_at("7f0c5a4e-2f0b-4b5e-8c9f-0d8f4f8f0d8f")


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_says_whether_trying_again_helps(code: ErrorCode) -> None:
    assert ErrorInfo.of(code, "x").retryable is is_retryable(code)
