"""The worker's composition root: every part from the settings, opened and closed in one place."""

import hashlib
import os
import secrets
import socket
from urllib.parse import urlsplit

import observability
from patchyard import __version__
from patchyard.adapters.catalog import Catalog
from patchyard.adapters.model import ModelPrice, ModelTransport, ProviderBook, ProviderConfig
from patchyard.adapters.queue import QueueCore
from patchyard.adapters.queue.budgets import ProviderBudgets
from patchyard.adapters.sandbox import DockerBoxes
from patchyard.adapters.store import open_store
from patchyard.adapters.workspace import WorkspaceManager
from patchyard.agent.redact import Redactor
from patchyard.settings import OWN_PROVIDER, Settings

from .parts import Parts, SystemClock
from .running.artefacts import Artefacts, Snapshots
from .running.boxes import BoxParts
from .running.setup import SetupImages


def build(settings: Settings) -> Parts:
    """The parts for these settings. Call it on the loop that will use them; nothing is contacted yet."""
    worker_id = f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(4)}"
    store = open_store(settings.effective_store_url, endpoint_url=settings.s3_endpoint_url)
    artefacts = Artefacts(store)
    engine = DockerBoxes(settings.docker_host, concurrency=settings.engine_concurrency, installation=installation(settings))
    workspaces = WorkspaceManager(
        settings.home / "workspaces",
        worker_id=worker_id,
        fetch_artefact=artefacts.fetch,
        allow_local=serves_local_user(settings),
    )
    hidden = known_secrets(settings)
    redactor = Redactor(hidden)
    telemetry = observability.setup(settings, "worker", version=__version__, redact=redactor.text)
    queue = QueueCore(
        settings.effective_redis_url,
        lease_ttl_s=settings.lease_ttl_s,
        tenant_cap=settings.tenant_cap,
        repository_cap=settings.repository_cap,
        allow_volatile=settings.allow_volatile_redis,
    )
    return Parts(
        settings=settings,
        worker_id=worker_id,
        queue=queue,
        store=store,
        catalog=Catalog(settings.effective_catalog_url),
        engine=engine,
        workspaces=workspaces,
        boxes=BoxParts(
            settings=settings,
            engine=engine,
            workspaces=workspaces,
            setups=SetupImages(settings, engine, workspaces),
            snapshots=Snapshots(store),
            metrics=telemetry.metrics,
        ),
        artefacts=artefacts,
        providers=providers_of(settings),
        budgets=ProviderBudgets(lambda: queue.backend, worker_id),
        transport=ModelTransport(),
        observability=telemetry,
        redactor=redactor,
        secrets=hidden,
        clock=SystemClock(),
    )


def installation(settings: Settings) -> str:
    """Names all workers of one queue: their reapers remove only each other's containers."""
    return hashlib.sha256(settings.effective_redis_url.encode()).hexdigest()[:16]


def provider_of(settings: Settings) -> ProviderConfig:
    """The provider of PATCHYARD_MODEL_*. ValidationError when the base URL or the key can't be used."""
    price = settings.own_price()
    return ProviderConfig(
        name=OWN_PROVIDER,
        base_url=settings.model_base_url,
        api_key=settings.model_api_key,
        wire_api=settings.model_wire_api,
        supports_websockets=settings.model_websockets,
        idle_timeout_s=settings.model_idle_timeout_s,
        request_retries=settings.model_request_retries,
        prices={} if price is None else {settings.model: ModelPrice(**price.model_dump())},
    )


def providers_of(settings: Settings) -> ProviderBook:
    """All providers, that of PATCHYARD_MODEL_* last. ValidationError, LookupError: a table can't be used."""
    tables = []
    for name, table in settings.providers.items():
        fields = table.model_dump(exclude={"api_key", "api_key_env"}, exclude_unset=True)
        try:
            tables.append(ProviderConfig(name=name, from_table=True, api_key=table.key(), **fields))
        except LookupError as problem:
            raise LookupError(f"provider {name}: {problem}; set it, or correct api_key_env in [providers.{name}]") from problem
    return ProviderBook([*tables, provider_of(settings)] if settings.has_own_provider else tables)


def known_secrets(settings: Settings) -> tuple[str, ...]:
    """What this process knows and nobody may see: keys, the API's token, passwords in addresses."""
    found = [settings.effective_token()]
    if settings.model_api_key is not None:
        found.append(settings.model_api_key.get_secret_value())
    for url in (settings.redis_url, settings.catalog_url, settings.store_url, settings.model_base_url):
        found.append(urlsplit(url).password if url else None)
    return tuple(secret for secret in (*found, *providers_of(settings).secrets()) if secret)


def serves_local_user(settings: Settings) -> bool:
    """Whether tasks may name folders of this machine: only when the queue itself can be reached from nowhere else."""
    return urlsplit(settings.effective_redis_url).scheme == "unix"
