"""Every setting, read once: environment (`PATCHYARD_*`) over `patchyard.toml` in PATCHYARD_HOME over the defaults."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    computed_field,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from patchyard.protocol.ids import TenantId
from patchyard.protocol.model_offers import ModelOffer
from patchyard.protocol.model_profiles import CompactionMethod, ModelProfile
from patchyard.protocol.tasks import HookEvent, HookSpec, check_matchers

OWN_PROVIDER = "openai"
"""Name of the provider of PATCHYARD_MODEL_*. A table of this name takes its place."""


def _home() -> Path:
    return Path(os.environ.get("PATCHYARD_HOME") or Path.home() / ".patchyard").expanduser().absolute()


def _web_address(value: str) -> str:
    parts = urlsplit(value)  # its ValueError says what is wrong
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an http:// or https:// address, such as https://api.openai.com/v1")
    _ = parts.port
    return value


def _proxy_address(value: SecretStr) -> SecretStr:
    _web_address(value.get_secret_value())
    return value


WebAddress = Annotated[str, AfterValidator(_web_address)]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]
"""As HTTP allows it."""


class ModelPriceSettings(BaseModel):
    """US dollars per million tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    input_per_million: float = Field(ge=0)
    """Tokens that the model reads."""
    cached_input_per_million: float | None = Field(default=None, ge=0)
    """Of these, what the provider had in its cache. None: as the others."""
    cache_write_per_million: float | None = Field(default=None, ge=0)
    """Of these, what was written to the cache. None: as the others."""
    output_per_million: float = Field(ge=0)
    """Tokens that the model writes."""


class ProviderLimitSettings(BaseModel):
    """What all workers together may ask of a provider. None: no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    concurrency: int | None = Field(default=None, ge=1)
    """Responses at once."""
    requests_per_minute: int | None = Field(default=None, ge=1)
    """Requests."""
    tokens_per_minute: int | None = Field(default=None, ge=1)
    """Input and output together."""


class ProviderSettings(BaseModel):
    """A table [providers.<name>] of patchyard.toml. Tasks ask for `<name>/<model>`, or for a model that it lists."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True, allow_inf_nan=False
    )

    base_url: WebAddress
    """Requests go to <base_url>/responses, or /chat/completions."""
    wire_api: Literal["responses", "chat"] = "responses"
    """`chat`: the server has Chat Completions only."""
    supports_websockets: bool = False
    """Try a WebSocket first (Responses API only)."""
    websocket_prewarm: bool = True
    """Tell a fresh socket instructions and tools before the first request."""
    api_key: SecretStr | None = None
    """The key itself; better in `api_key_env`."""
    api_key_env: str | None = None
    """Environment variable that holds the key."""
    key_header: HeaderName = "authorization"
    """`authorization` sends `Bearer <key>`, any other header (`api-key`) the bare key."""
    query: dict[str, str] = Field(default_factory=dict)
    """Query parameters (`api-version`)."""
    headers: dict[HeaderName, SecretStr] = Field(default_factory=dict)
    """Further headers."""
    proxy: Annotated[SecretStr, AfterValidator(_proxy_address)] | None = None
    """http:// or https:// proxy, user and password included."""
    ca_file: str | None = None
    """CA bundle (PEM) in place of the usual ones."""
    models: tuple[str, ...] = ()
    """Names or patterns (`gpt-*`) that it serves. Empty: whatever is asked for."""
    tenants: tuple[str, ...] = ()
    """Tenants that may use it. Empty: all."""
    prices: dict[str, ModelPriceSettings] = Field(default_factory=dict)
    """By model. Without a price the cost of a turn is not known; it is never shown as 0."""
    limits: ProviderLimitSettings = ProviderLimitSettings()
    """Shared by all workers."""
    idle_timeout_s: float = Field(default=300, gt=0)
    """Silence after which a response is given up."""
    connect_timeout_s: float = Field(default=10, gt=0)
    """Time for TCP and TLS."""
    request_retries: int = Field(default=4, ge=0, le=20)
    """Tries after the first, before a response began."""
    max_request_bytes: int = Field(default=64 * 1024 * 1024, gt=0)
    """A larger request is refused."""
    max_response_bytes: int = Field(default=256 * 1024 * 1024, gt=0)
    """A larger response is broken off."""

    def key(self) -> SecretStr | None:
        """The key. LookupError: the variable is not set."""
        if self.api_key is not None or self.api_key_env is None:
            return self.api_key
        value = os.environ.get(self.api_key_env)
        if not value:
            raise LookupError(f"the environment variable {self.api_key_env} is not set")
        return SecretStr(value)


class TenantHookSettings(HookSpec):
    """A table [hooks.<name>] of patchyard.toml: a hook of the tenants' own, before those of task and repository."""

    event: HookEvent
    """When it runs."""
    tenants: tuple[TenantId, ...] = ()
    """Tenants whose tasks it runs for. Empty: all."""

    @field_validator("matcher")
    @classmethod
    def _matcher_can_be_used(cls, matcher: str | None) -> str | None:
        check_matchers([matcher])
        return matcher

    @model_validator(mode="after")
    def _can_match(self) -> Self:
        if self.matcher not in (None, "", "*") and self.event in (HookEvent.USER_PROMPT_SUBMIT, HookEvent.STOP):
            raise ValueError(
                f"there is nothing to match at {self.event.value}: with a matcher it would never run; leave it out"
            )
        return self

    def spec(self) -> HookSpec:
        """The hook as an agent is given it."""
        return HookSpec(matcher=self.matcher, command=self.command, timeout_s=self.timeout_s)


class Settings(BaseSettings):
    """Frozen. Unknown keys in patchyard.toml are errors that name the key."""

    model_config = SettingsConfigDict(
        env_prefix="PATCHYARD_",
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )

    home: Path = Field(default_factory=_home)
    """Folder of everything that this machine keeps: redis.sock, token, objects/, catalog.db, logs/, workspaces/."""

    # --- API
    api_host: str = "127.0.0.1"
    """Address that the API listens on."""
    api_port: int = Field(default=7400, ge=0, le=65535)
    """Port that the API listens on."""
    api_url: str | None = None
    """Where clients find the API. None: http://<api_host>:<api_port>."""
    token: SecretStr | None = None
    """Bearer token of clients. None: the content of <home>/token."""
    max_upload_bytes: int = Field(default=512 * 1024 * 1024, gt=0)
    """Largest artefact that the API takes."""

    # --- storage
    redis_url: str | None = None
    """Redis or Valkey (redis://, rediss:// or unix://). None: the embedded server on <home>/redis.sock."""
    allow_volatile_redis: bool = False
    """Development only: accept a Redis that may lose acknowledged submissions on a power cut."""
    catalog_url: str | None = None
    """SQLAlchemy URL (postgresql+psycopg:// or sqlite://). None: <home>/catalog.db."""
    store_url: str | None = None
    """Object store: file:///folder or s3://bucket/prefix. None: <home>/objects."""
    s3_endpoint_url: str | None = None
    """Endpoint of an S3-compatible store. None: AWS."""

    # --- model
    model: str = "gpt-5.5"
    """Model of tasks that name none."""
    model_base_url: WebAddress = "https://api.openai.com/v1"
    """Any server with the Responses API: requests go to <base>/responses."""
    model_api_key: SecretStr | None = None
    """Key of that server, sent as bearer token."""
    model_context_window: int = Field(default=272_000, gt=0)
    """Tokens that a model can take which `models` does not name."""
    models: dict[str, ModelProfile] = Field(default_factory=dict)
    """Facts about single models, by name: `[models."name"]` with context_window, images, family."""
    compaction: CompactionMethod = "local"
    """What follows on a full context window: local (the model's summary), remote (the provider's own, where it has one; else
    local), token_budget (no summary)."""
    context_budget: float = Field(default=0.8, gt=0.1, le=0.95)
    """Share of the context window from which on it counts as full."""
    model_idle_timeout_s: float = Field(default=300, gt=0)
    """A response stream that is silent for so long is broken off and tried again."""
    model_request_retries: int = Field(default=4, ge=0, le=20)
    """Tries after the first on transport errors, 429 and 5xx, before a response began."""
    model_stream_retries: int = Field(default=5, ge=0, le=20)
    """Tries after the first on a response that broke off."""

    model_price_input: float | None = Field(default=None, ge=0)
    """US dollars per million tokens that PATCHYARD_MODEL reads there. None: its cost is not known, and never shown as 0."""
    model_price_cached_input: float | None = Field(default=None, ge=0)
    """Of these, what the server had in its cache. None: as the others."""
    model_price_output: float | None = Field(default=None, ge=0)
    """US dollars per million tokens that it writes."""

    model_websockets: bool = False
    """Whether that server also speaks the Responses API over WebSockets."""
    model_wire_api: Literal["responses", "chat"] = "responses"
    """`chat`: that server has Chat Completions only."""
    providers: dict[str, ProviderSettings] = Field(default_factory=dict)
    """Further providers, as tables [providers.<name>] of patchyard.toml. They are asked before PATCHYARD_MODEL_BASE_URL."""

    # --- hooks
    hooks: dict[str, TenantHookSettings] = Field(default_factory=dict)
    """Hooks of tenants, as tables [hooks.<name>] of patchyard.toml, in the order of the file. No task can switch them off."""

    # --- workers and queue
    worker_concurrency: int = Field(default=200, ge=1, le=1000)
    """Turns that one worker process runs at once."""
    tenant_cap: int = Field(default=1000, ge=1)
    """Turns of one tenant at once."""
    repository_cap: int = Field(default=1000, ge=1)
    """Turns on one repository at once."""
    lease_ttl_s: float = Field(default=30, gt=0)
    """A worker that is silent for so long has lost its threads."""
    hold_time_s: float = Field(default=120, gt=0)
    """How long a turn waits for an answer in its slot before it parks."""
    question_expiry_s: float = Field(default=24 * 3600, gt=0)
    """How long a question waits for an answer at all; then it counts as a no."""
    agents_limit: int = Field(default=4, ge=1, le=16)
    """Agents that a turn's agent may have open at once."""
    agents_depth: int = Field(default=1, ge=0, le=4)
    """How deep agents may start agents: 0 not at all, 1 a task's own agent only."""
    verify_rounds: int = Field(default=3, ge=1, le=10)
    """Verification runs of one task: the first and the retries after feedback to the agent."""

    # --- sandbox
    docker_host: str = "unix:///var/run/docker.sock"
    """Docker engine: unix:///path or tcp://host:port."""
    sandbox_image: str | None = None
    """Image of the boxes. None: the one that `sandbox_images/build.py` recorded in <home>/images.lock.json."""
    sandbox_memory_mb: int = Field(default=2048, ge=64)
    """Memory of a box."""
    sandbox_cpus: float = Field(default=2.0, gt=0)
    """CPUs of a box."""
    sandbox_pids: int = Field(default=512, ge=16)
    """Processes of a box."""
    engine_concurrency: int = Field(default=4, ge=1)
    """Container starts and removals at once: the engine gets slower beyond 2 x cores."""
    setup_network: str = "bridge"
    """Docker network of the set-up phase only; boxes of agents have none."""
    setup_ca_file: Path | None = None
    """Extra CA bundle for the set-up phase (a company proxy)."""

    # --- telemetry
    otlp_endpoint: str | None = None
    """Base URL of an OTLP/HTTP collector. None: spans stay in the rollout only."""
    log_level: str = "INFO"
    """Lowest level that is logged."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def effective_redis_url(self) -> str:
        """The Redis in use."""
        return self.redis_url or f"unix://{self.home / 'redis.sock'}"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def effective_catalog_url(self) -> str:
        """The catalog in use."""
        return self.catalog_url or f"sqlite:///{self.home / 'catalog.db'}"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def effective_store_url(self) -> str:
        """The object store in use."""
        return self.store_url or f"file://{self.home / 'objects'}"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def effective_api_url(self) -> str:
        """Where clients find the API."""
        return self.api_url or f"http://{self.api_host}:{self.api_port}"

    @property
    def has_own_provider(self) -> bool:
        """Whether PATCHYARD_MODEL_BASE_URL is a provider beside the tables: when nobody set it, a misspelt model must not go there."""
        asked = bool(self.model_fields_set & {"model_base_url", "model_api_key"})
        return not self.providers or (asked and OWN_PROVIDER not in self.providers)

    def model_offers(self) -> tuple[ModelOffer, ...]:
        """What all providers serve, in the order in which they are asked."""
        tables = tuple(ModelOffer(name, table.models, table.tenants) for name, table in self.providers.items())
        return (*tables, ModelOffer(OWN_PROVIDER)) if self.has_own_provider else tables

    def own_price(self) -> ModelPriceSettings | None:
        """What PATCHYARD_MODEL costs at PATCHYARD_MODEL_BASE_URL; None: not known."""
        if self.model_price_input is None or self.model_price_output is None:
            return None
        return ModelPriceSettings(
            input_per_million=self.model_price_input,
            cached_input_per_million=self.model_price_cached_input,
            output_per_million=self.model_price_output,
        )

    @model_validator(mode="after")
    def _price_is_whole(self) -> Self:
        given = (self.model_price_input, self.model_price_output)
        if None in given and (given != (None, None) or self.model_price_cached_input is not None):
            raise ValueError("PATCHYARD_MODEL_PRICE_INPUT and PATCHYARD_MODEL_PRICE_OUTPUT are both needed, or neither")
        return self

    def effective_token(self) -> str | None:
        """The bearer token: the setting, else the token file, else None."""
        if self.token is not None:
            return self.token.get_secret_value()
        path = self.home / "token"
        return path.read_text().strip() if path.is_file() else None

    def hooks_of(self, tenant_id: str) -> dict[HookEvent, tuple[HookSpec, ...]]:
        """The hooks of a tenant, by event."""
        wanted = [hook for hook in self.hooks.values() if not hook.tenants or tenant_id in hook.tenants]
        return {event: tuple(hook.spec() for hook in wanted if hook.event is event) for event in {h.event for h in wanted}}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then the environment, then the TOML file. Never a `.env` of whatever folder one stands in."""
        toml = TomlConfigSettingsSource(settings_cls, _home() / "patchyard.toml")
        return init_settings, env_settings, toml


def load(**overrides: Any) -> Settings:
    """Read the settings. ValidationError names the key and what it must be."""
    return Settings(**overrides)
