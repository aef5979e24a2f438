"""Which provider serves a model, what settings say, and what limits say."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from patchyard.adapters.model import ProviderBook, ProviderConfig, UnknownModel
from patchyard.adapters.model.limits import exhausted_for
from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.model_items import TokenUsage
from patchyard.settings import load
from workers.wiring import known_secrets, provider_of, providers_of

TOML = """
[providers.azure]
base_url = "https://x.example/openai/v1"
api_key_env = "TEST_AZURE_KEY"
key_header = "api-key"
query = { api-version = "preview" }
models = ["gpt-5.5", "o*"]
proxy = "http://user:hidden-word@proxy.example:3128"
supports_websockets = true
tenants = ["acme"]
[providers.azure.limits]
concurrency = 20
tokens_per_minute = 90000
[providers.azure.prices."gpt-5.5"]
input_per_million = 1.25
cached_input_per_million = 0.125
output_per_million = 10
[providers.local]
base_url = "http://127.0.0.1:8000/v1"
wire_api = "chat"
models = ["qwen-coder"]
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PATCHYARD_MODEL_BASE_URL", "PATCHYARD_MODEL_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATCHYARD_HOME", str(tmp_path))
    monkeypatch.setenv("TEST_AZURE_KEY", "key-of-azure")
    (tmp_path / "patchyard.toml").write_text(TOML)
    return tmp_path


def test_tables_become_providers(home: Path) -> None:
    settings = load()
    azure, local = providers_of(settings).providers
    assert (azure.name, azure.request_url) == ("azure", "https://x.example/openai/v1/responses")
    assert azure.auth_headers() == {"api-key": "key-of-azure"}
    assert (azure.limits.concurrency, azure.limits.requests_per_minute, azure.limits.tokens_per_minute) == (20, None, 90000)
    assert azure.prices["gpt-5.5"].cached_input_per_million == 0.125
    assert local.request_url == "http://127.0.0.1:8000/v1/chat/completions"
    assert {"key-of-azure", "hidden-word"} <= set(known_secrets(settings))


def test_routes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = providers_of(load())
    assert book.route("gpt-5.5", "acme").provider.name == "azure"
    assert book.route("azure/o9", "acme").model == "o9"
    assert book.route("qwen-coder", "acme").provider.name == "local"
    with pytest.raises(UnknownModel, match=r"gpt-5.5 here \(there is local: qwen-coder\)") as caught:
        book.route("gpt-5.5", "other")
    assert caught.value.code is ErrorCode.MODEL_BAD_REQUEST
    monkeypatch.setenv("PATCHYARD_MODEL_BASE_URL", "http://127.0.0.1:9/v1")
    book = providers_of(load())
    assert [provider.name for provider in book.providers] == ["azure", "local", "openai"]
    route = book.route("some/model", "other")
    assert (route.provider.name, route.model) == ("openai", "some/model")


def test_the_listed_name_wins_over_a_pattern_and_a_pattern_over_any() -> None:
    names = {"any": (), "pattern": ("gpt-*",), "exact": ("gpt-5.5",)}
    book = ProviderBook([ProviderConfig(name=name, models=models) for name, models in names.items()])
    assert [book.route(model, "t").provider.name for model in ("gpt-5.5", "gpt-6", "x")] == ["exact", "pattern", "any"]
    with pytest.raises(ValueError, match="two providers"):
        ProviderBook([ProviderConfig(), ProviderConfig()])


@pytest.mark.parametrize(
    ("line", "message"),
    [("wire = 1", "providers.bad.wire"), ('wire_api = "grpc"', "providers.bad.wire_api")],
)
def test_mistakes_are_named(home: Path, line: str, message: str) -> None:
    (home / "patchyard.toml").write_text(f'[providers.bad]\nbase_url = "http://h/v1"\n{line}\n')
    with pytest.raises(ValidationError, match=message):
        load()


def test_a_key_that_is_not_there_and_sockets_without_responses(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_AZURE_KEY")
    with pytest.raises(LookupError, match=r"TEST_AZURE_KEY is not set; set it, or correct api_key_env in \[providers.azure\]"):
        providers_of(load())
    with pytest.raises(ValidationError, match="supports_websockets needs wire_api"):
        ProviderConfig(wire_api="chat", supports_websockets=True)


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        ({}, None),
        ({"ratelimit_remaining_requests": 5, "ratelimit_reset_requests": "1s"}, None),
        ({"ratelimit_remaining_requests": 0}, None),
        ({"ratelimit_remaining_requests": 0, "ratelimit_reset_requests": "1m2.5s"}, 60.0),
        ({"ratelimit_remaining_tokens": 0, "ratelimit_reset_tokens": "120ms"}, 0.12),
        ({"ratelimit_remaining": "0", "ratelimit_reset": 7}, 7.0),
        ({"ratelimit_remaining": "0", "ratelimit_reset": "soon"}, None),
    ],
)
def test_what_headers_say_of_limits(values: dict[str, object], seconds: float | None) -> None:
    assert exhausted_for(values) == seconds


def test_the_short_form_has_a_price(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "patchyard.toml").unlink()
    used = TokenUsage(input_tokens=1_000_000, cached_input_tokens=400_000, output_tokens=100_000)
    assert provider_of(load()).cost("gpt-5.5", used) is None
    monkeypatch.setenv("PATCHYARD_MODEL_PRICE_INPUT", "1.25")
    monkeypatch.setenv("PATCHYARD_MODEL_PRICE_OUTPUT", "10")
    assert provider_of(load()).cost("gpt-5.5", used) == pytest.approx(1.25 + 1.0)
    monkeypatch.setenv("PATCHYARD_MODEL_PRICE_CACHED_INPUT", "0.125")
    monkeypatch.setenv("PATCHYARD_MODEL", "my-model")
    own = provider_of(load())
    assert own.cost("my-model", used) == pytest.approx(0.6 * 1.25 + 0.4 * 0.125 + 1.0)
    assert own.cost("another", used) is None, "the price of one model says nothing about others"


@pytest.mark.parametrize("alone", ["INPUT", "OUTPUT", "CACHED_INPUT"])
def test_half_a_price_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch, alone: str) -> None:
    monkeypatch.setenv(f"PATCHYARD_MODEL_PRICE_{alone}", "1")
    with pytest.raises(ValidationError, match="PATCHYARD_MODEL_PRICE_OUTPUT are both needed"):
        load()
