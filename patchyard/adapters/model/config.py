"""A model provider as configuration: any server with the Responses API, without code."""

from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from patchyard.protocol.model_items import TokenUsage

MILLION = 1_000_000


class ModelPrice(BaseModel):
    """US dollars per million tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    input_per_million: float = Field(ge=0)
    output_per_million: float = Field(ge=0)
    cached_input_per_million: float | None = Field(default=None, ge=0)
    """None: cached tokens cost as much as others."""
    cache_write_per_million: float | None = Field(default=None, ge=0)
    """None: writing the cache costs as much as other input."""

    def cost(self, usage: TokenUsage) -> float:
        """US dollars of one request. `input_tokens` includes the cached and the written ones."""
        cached = min(usage.cached_input_tokens, usage.input_tokens)
        written = min(usage.cache_write_input_tokens, usage.input_tokens - cached)
        plain = usage.input_tokens - cached - written
        total = plain * self.input_per_million + usage.output_tokens * self.output_per_million
        total += cached * (self.input_per_million if self.cached_input_per_million is None else self.cached_input_per_million)
        total += written * (self.input_per_million if self.cache_write_per_million is None else self.cache_write_per_million)
        return total / MILLION


class ProviderLimits(BaseModel):
    """What all workers together may ask of a provider. None: no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    concurrency: int | None = Field(default=None, ge=1)
    """Responses at once."""
    requests_per_minute: int | None = Field(default=None, ge=1)
    tokens_per_minute: int | None = Field(default=None, ge=1)
    """Input and output together."""


class ProviderConfig(BaseModel):
    """One provider of one tenant. Frozen; several may live in a process and share its connections."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True)

    name: str = "openai"
    """Name in records and spans."""
    from_table: bool = False
    """Whether its settings stand in a table [providers.<name>]; else they are PATCHYARD_MODEL_*. Error texts name them."""
    base_url: str = "https://api.openai.com/v1"
    """Requests go to <base_url>/responses, or /chat/completions."""
    wire_api: Literal["responses", "chat"] = "responses"
    """`chat`: the server has Chat Completions only."""
    supports_websockets: bool = False
    """Try a WebSocket first (Responses API only); SSE is what is left when it can't be had."""
    websocket_prewarm: bool = True
    """Tell a fresh socket instructions and tools before the first request: the provider prepares them."""
    websocket_retries: int = Field(default=2, ge=0, le=20)
    """Sockets in a row that may break before a thread goes over to SSE for good."""
    api_key: SecretStr | None = None
    """None: no credentials are sent."""
    key_header: str = "authorization"
    """Header of the key: `authorization` sends `Bearer <key>`, any other (`api-key`) the bare key."""
    query: dict[str, str] = Field(default_factory=dict)
    """Query parameters (`api-version`)."""
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    """Further headers; they win over our own. Taken as secrets: gateways put keys here."""
    proxy: SecretStr | None = None
    """http:// or https:// proxy, user and password included. None: no proxy, whatever the environment says."""
    ca_file: str | None = None
    """CA bundle (PEM) in place of the usual ones."""
    idle_timeout_s: float = Field(default=300, gt=0)
    """Silence after which a request or stream is given up."""
    connect_timeout_s: float = Field(default=10, gt=0)
    """Time for TCP and TLS."""
    request_retries: int = Field(default=4, ge=0, le=20)
    """Tries after the first on transport errors, 429 and 5xx, before a response began."""
    max_retry_after_s: float = Field(default=60, ge=0)
    """The longest pause named by the server that is waited for here; a longer one is reported, so that the turn can park."""
    reasoning_summary: Literal["auto", "concise", "detailed"] | None = None
    """Ask for summaries of the model's reasoning. None: leave it to the provider, since some refuse accounts that ask."""
    max_request_bytes: int = Field(default=64 * 1024 * 1024, gt=0)
    """A larger request is refused here, with a message that says so."""
    max_response_bytes: int = Field(default=256 * 1024 * 1024, gt=0)
    """A response that is larger is broken off."""
    models: tuple[str, ...] = ()
    """Names, or patterns such as `gpt-*`, that are served here. Empty: whatever is asked for."""
    tenants: tuple[str, ...] = ()
    """Tenants that may use it. Empty: all."""
    limits: ProviderLimits = ProviderLimits()
    prices: dict[str, ModelPrice] = Field(default_factory=dict)
    """By model name. A model without a price costs None, never 0."""

    @field_validator("base_url")
    @classmethod
    def _is_url(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                "must be an http:// or https:// address, such as https://api.openai.com/v1 (PATCHYARD_MODEL_BASE_URL)"
            )
        if parts.query or parts.fragment:
            raise ValueError("must have no ? or # part; give query parameters as `query`")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _sockets_need_responses(self) -> Self:
        if self.supports_websockets and self.wire_api == "chat":
            raise ValueError('supports_websockets needs wire_api = "responses": Chat Completions has no WebSocket')
        return self

    @model_validator(mode="after")
    def _key_is_a_header_value(self) -> Self:
        for name, secret in self._secrets():
            value = secret.get_secret_value()
            if not value.isascii() or any(ord(letter) < 32 or ord(letter) == 127 for letter in value):
                raise ValueError(f"{name} has characters that no HTTP header can hold; was it pasted with a line break?")
        return self

    def _secrets(self) -> list[tuple[str, SecretStr]]:
        found = [(f"header {name}", value) for name, value in self.headers.items()]
        return found if self.api_key is None else [("the API key (PATCHYARD_MODEL_API_KEY)", self.api_key), *found]

    @property
    def request_url(self) -> str:
        """Where requests go."""
        return f"{self.base_url}/{'responses' if self.wire_api == 'responses' else 'chat/completions'}"

    def auth_headers(self) -> dict[str, str]:
        """Credentials and configured headers, lower-case names."""
        headers: dict[str, str] = {}
        if self.api_key is not None:
            key = self.api_key.get_secret_value()
            headers[self.key_header.lower()] = f"Bearer {key}" if self.key_header.lower() == "authorization" else key
        return headers | {name.lower(): value.get_secret_value() for name, value in self.headers.items()}

    def setting(self, field: str) -> str:
        """How a user names one of these settings."""
        return f"`{field}` of [providers.{self.name}]" if self.from_table else f"PATCHYARD_MODEL_{field.upper()}"

    def secret_values(self) -> tuple[str, ...]:
        """What must never be shown, longest first."""
        values = {secret.get_secret_value() for _, secret in self._secrets()}
        if self.proxy is not None:
            values.add(self.proxy.get_secret_value())
            values.add(urlsplit(self.proxy.get_secret_value()).password or "")
        values.add(urlsplit(self.base_url).password or "")
        return tuple(sorted((value for value in values if len(value) >= 4), key=len, reverse=True))

    def redact(self, text: str) -> str:
        """The text without any of this provider's secrets."""
        for value in self.secret_values():
            text = text.replace(value, "[redacted]")
        return text

    def cost(self, model: str, usage: TokenUsage | None) -> float | None:
        """US dollars, or None when the price or the usage is not known."""
        price = self.prices.get(model)
        return None if price is None or usage is None else price.cost(usage)
