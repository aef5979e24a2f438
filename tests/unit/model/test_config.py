"""Providers as configuration."""

import pytest
from pydantic import ValidationError

from patchyard.adapters.model import ModelPrice, ProviderConfig
from patchyard.protocol.model_items import TokenUsage


def test_key_headers_and_query_of_other_providers() -> None:
    azure = ProviderConfig(
        base_url="https://x.example/openai/v1/", api_key="abcd", key_header="Api-Key", headers={"X-Team": "a"}
    )
    assert azure.auth_headers() == {"api-key": "abcd", "x-team": "a"}
    assert azure.request_url == "https://x.example/openai/v1/responses"
    assert ProviderConfig(api_key="abcd").auth_headers() == {"authorization": "Bearer abcd"}
    assert ProviderConfig().auth_headers() == {}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"base_url": "localhost:8000"}, "PATCHYARD_MODEL_BASE_URL"),
        ({"base_url": "https://x/v1?api-version=2"}, "query"),
        ({"api_key": "sk-abc\n"}, "PATCHYARD_MODEL_API_KEY"),
        ({"timeout": 3}, "timeout"),
    ],
)
def test_mistakes_are_told_without_the_key(fields: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ProviderConfig.model_validate(fields)
    assert says in str(caught.value)
    assert "sk-abc" not in str(caught.value)


def test_cost() -> None:
    price = ModelPrice(input_per_million=2, cached_input_per_million=0.5, output_per_million=8)
    config = ProviderConfig(prices={"m": price})
    usage = TokenUsage(input_tokens=1_000_000, cached_input_tokens=400_000, output_tokens=100_000)
    assert config.cost("m", usage) == pytest.approx(1.2 + 0.2 + 0.8)
    assert config.cost("unknown", usage) is None
    assert config.cost("m", None) is None


def test_a_password_in_the_address_is_redacted() -> None:
    config = ProviderConfig(base_url="http://user:hunter22@127.0.0.1/v1", proxy="http://a:tunnel99@127.0.0.1:1")
    assert config.redact("hunter22 tunnel99") == "[redacted] [redacted]"
