"""The doctor's checks. Each looks at one part and answers with what it saw and what to do."""

import asyncio
import os
import platform
import re
import shutil
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import httpx
from pydantic import ValidationError

from patchyard import __version__
from patchyard.adapters.catalog import Catalog, CatalogError
from patchyard.adapters.model import ModelTransport, ProviderConfig, UnknownModel
from patchyard.adapters.queue import QueueCore, QueueUnavailable
from patchyard.adapters.sandbox import DockerBoxes
from patchyard.adapters.store import open_store
from patchyard.protocol.ids import DEFAULT_TENANT
from patchyard.protocol.service import CheckResult
from patchyard.settings import Settings

from .running.setup import base_image, recorded_image
from .wiring import providers_of

Status = Literal["ok", "warning", "failed"]
MIN_GIT = (2, 34)
"""Older ones lack safe handling of borrowed repositories."""
_MODEL_TIMEOUT_S = 5.0
MAX_SOCKET_PATH = 103
"""Bytes, on every system (see the supervisor)."""


def _result(name: str, status: Status, detail: str, remedy: str | None = None) -> list[CheckResult]:
    return [CheckResult(name=name, status=status, detail=detail, remedy=remedy)]


async def versions(settings: Settings) -> list[CheckResult]:
    """What runs here."""
    found = f"Patchyard {__version__}, Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    results = _result("versions", "ok", found)
    free = await asyncio.to_thread(_free_bytes, settings)
    if free is not None and free < 2 << 30:
        text = f"{free >> 20} MiB are free below {settings.home}"
        results += _result("disk", "warning", text, "Free some space: mirrors, work trees and rollouts need it.")
    return results


async def git(settings: Settings) -> list[CheckResult]:
    """The git program, used for mirrors and checkouts."""
    del settings
    if shutil.which("git") is None:
        return _result("git", "failed", "git is not installed", "Install git 2.34 or newer.")
    process = await asyncio.create_subprocess_exec("git", "--version", stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    text = out.decode("utf-8", "replace").strip()
    version = tuple(int(part) for part in re.findall(r"\d+", text)[:2])
    if version < MIN_GIT:
        return _result("git", "failed", f"{text} is too old", "Install git 2.34 or newer.")
    return _result("git", "ok", text)


async def engine(settings: Settings) -> list[CheckResult]:
    """The Docker engine and its runtime."""
    boxes = DockerBoxes(settings.docker_host, concurrency=1)
    info = await boxes.info()
    if not info.reachable:
        remedy = "Install and start Docker, or set PATCHYARD_DOCKER_HOST. The user must be allowed to use its socket."
        return _result("engine", "failed", f"no Docker engine answers at {settings.docker_host}", remedy)
    told = f"Docker {info.version}, runc {info.runc_version or 'unknown'}, cgroup v{info.cgroup_version}, {info.architecture}"
    results = _result("engine", "ok", told)
    for finding in info.findings:
        results += _result("engine", "warning", finding.problem, finding.remedy)
    return results


async def image(settings: Settings) -> list[CheckResult]:
    """The image of the boxes."""
    build = "Run `python sandbox_images/build.py`."
    if settings.sandbox_image is None and recorded_image(settings.home) is None:
        return _result("image", "failed", "the image of the boxes was not built yet", build)
    name = base_image(settings)
    boxes = DockerBoxes(settings.docker_host, concurrency=1)
    if not (await boxes.info()).reachable:
        return _result("image", "failed", f"no engine can be asked for {name}", "Start the Docker engine first.")
    if not await boxes.image_exists(name):
        return _result("image", "failed", f"{name} is not in the Docker engine", build)
    return _result("image", "ok", name)


async def queue(settings: Settings) -> list[CheckResult]:
    """Redis: reachable, and durable."""
    socket = settings.home / "redis.sock"
    if settings.redis_url is None and len(os.fsencode(socket)) > MAX_SOCKET_PATH:
        text = f"{socket} is too long a path for a unix socket"
        return _result("redis", "failed", text, "Set PATCHYARD_HOME to a folder with a shorter path.")
    core = QueueCore(settings.effective_redis_url, allow_volatile=settings.allow_volatile_redis)
    try:
        await core.open()
        health = await core.check()
    except QueueUnavailable as error:
        remedy = "Start it with `patchyard up`, or set PATCHYARD_REDIS_URL to a Redis or Valkey 7 or newer."
        cause = str(error.__cause__ or error.info.message)
        return _result(
            "redis", "failed", f"no Redis answers at {_without_password(settings.effective_redis_url)}: {cause}", remedy
        )
    finally:
        await core.close()
    told = f"{health.server} {health.version}, appendonly {'yes' if health.appendonly else 'no'}, fsync {health.appendfsync}"
    if not health.problems:
        return _result("redis", "ok", told)
    status: Status = "warning" if health.usable else "failed"
    return [
        CheckResult(name="redis", status=status, detail=problem.problem, remedy=problem.remedy) for problem in health.problems
    ]


async def store(settings: Settings) -> list[CheckResult]:
    """The object store: writes, reads and deletes a small object."""
    opened = open_store(settings.effective_store_url, endpoint_url=settings.s3_endpoint_url)
    try:
        await opened.check()
    finally:
        await opened.close()
    return _result("store", "ok", _without_password(settings.effective_store_url))


async def catalog(settings: Settings) -> list[CheckResult]:
    """The database of tasks."""
    remedy = "Start the service once with `patchyard up`: it makes the tables."
    missing = _sqlite_file(settings.effective_catalog_url)
    if missing is not None and not await asyncio.to_thread(missing.exists):
        return _result("catalog", "failed", f"{missing} does not exist yet", remedy)
    opened = Catalog(settings.effective_catalog_url)
    try:
        await opened.check()
    except CatalogError as error:
        return _result("catalog", "failed", error.info.message, remedy)
    finally:
        await opened.close()
    return _result("catalog", "ok", _without_password(settings.effective_catalog_url))


async def model(settings: Settings) -> list[CheckResult]:
    """The models' servers: name, TCP, TLS, and whether they take the key. Costs no tokens."""
    try:
        book = providers_of(settings)
        wanted = book.route(settings.model, DEFAULT_TENANT)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"])
        remedy = "Correct PATCHYARD_MODEL_BASE_URL, PATCHYARD_MODEL_API_KEY, or the table [providers.…] in patchyard.toml."
        return _result("model", "failed", f"{place}: {problem['msg']}" if place else problem["msg"], remedy)
    except (LookupError, ValueError) as error:
        return _result("model", "failed", str(error), "Correct the table [providers.…] in patchyard.toml.")
    except UnknownModel as error:
        return _result("model", "failed", error.info.message, "Set PATCHYARD_MODEL to a model that a provider serves.")
    found = await asyncio.gather(*(_provider(one, wanted.model if one is wanted.provider else None) for one in book.providers))
    return [result for results in found for result in results]


async def _provider(provider: ProviderConfig, wanted: str | None) -> list[CheckResult]:
    results: list[CheckResult] = []
    key, base = provider.setting("api_key"), provider.setting("base_url")
    if provider.api_key is None:
        results += _result(
            "model", "warning", f"{provider.name}: no API key is set", f"Set {key}, unless the server wants none."
        )
    url = f"{provider.base_url}/models"
    try:
        async with ModelTransport() as transport, asyncio.timeout(_MODEL_TIMEOUT_S):
            client = transport.client(provider)
            answer = await client.get(url, params=provider.query or None, headers=provider.auth_headers())
    except (httpx.HTTPError, OSError, TimeoutError) as error:
        text = f"{provider.base_url} can't be reached: {provider.redact(str(error)) or type(error).__name__}"
        return [*results, *_result("model", "failed", text, f"Check {base}, the network and its proxy.")]
    if answer.status_code in (401, 403):
        text = f"{provider.base_url} refuses the key (status {answer.status_code})"
        return [*results, *_result("model", "failed", text, f"Set {key} to a key that this server accepts.")]
    if answer.status_code >= 500:
        text = f"{provider.base_url} answers with status {answer.status_code}"
        return [*results, *_result("model", "warning", text, "The server has trouble; tasks are tried again for a while.")]
    # Many servers have no list of models: any other answer shows that it is there.
    served = wanted or ", ".join(provider.models) or "any model"
    return [*results, *_result("model", "ok", f"{served} at {provider.base_url}")]


async def hooks(settings: Settings) -> list[CheckResult]:
    """Hooks of tenants: which there are. Bad ones do not get this far."""
    told = [
        f"{name} ({hook.event.value}{f' of {hook.matcher}' if hook.matcher else ''}, {', '.join(hook.tenants) or 'all tenants'})"
        for name, hook in settings.hooks.items()
    ]
    return _result("hooks", "ok", "; ".join(told)) if told else []


def _free_bytes(settings: Settings) -> int | None:
    """Of the fullest disk that holds a part of the home."""
    parts = [folder for folder in (settings.home / "redis", settings.home / "workspaces", settings.home) if folder.is_dir()]
    there = parts or [folder for folder in settings.home.parents if folder.is_dir()][:1]
    return min((shutil.disk_usage(folder).free for folder in there), default=None)


def _sqlite_file(url: str) -> Path | None:
    """The file of a SQLite catalog: looking at it must not make it."""
    return Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return url.replace(f":{parts.password}@", ":…@") if parts.password else url
