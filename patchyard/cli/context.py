"""What commands share: settings, the connection to the service, the way results are printed."""

import difflib
import json
import sys
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import click
import httpx
from pydantic import BaseModel, ValidationError
from rich.console import Console

from patchyard.cli.errors import CliError, UsageError
from patchyard.cli.services.background import start_detached
from patchyard.cli.services.home import ServiceHome
from patchyard.client import PatchyardClient, RetryPolicy
from patchyard.protocol.service import Readiness
from patchyard.settings import Settings, load
from patchyard.settings_file import SettingProblem, problems

T = TypeVar("T")

_PIPED_WIDTH = 250
"""Columns of output that nobody looks at on a screen: nothing is cut that a program may want."""
_STARTING_S = 330.0
"""How long a service that another command is just starting is waited for."""


def settings() -> Settings:
    """The settings. UsageError names each wrong key."""
    try:
        return load()
    except ValidationError as error:
        lines = [_wrong_setting(problem) for problem in problems(error)]
        raise UsageError(
            f"The settings are wrong: {'; '.join(lines)}.",
            remedy="Correct the PATCHYARD_* variables or patchyard.toml in PATCHYARD_HOME.",
        ) from error
    except ValueError as error:
        raise UsageError(f"patchyard.toml can't be read: {error}.", remedy="Correct the file.") from error


def _wrong_setting(problem: SettingProblem) -> str:
    name = problem.name
    if problem.kind != "extra_forbidden":
        return f"{name}: {problem.text}"
    near = difflib.get_close_matches(name, Settings.model_fields, n=1)
    where = f" ({problem.place})" if problem.place else ""
    return f"there is no setting {name}" + (f", did you mean {near[0]}?" if near else "") + where


def service_home() -> ServiceHome:
    """The home of this machine's service, also when other settings are wrong: it can be stopped all the same."""
    try:
        return ServiceHome(settings().home)
    except UsageError as error:
        notice(f"{error.message} Only PATCHYARD_HOME is looked at.")
        return ServiceHome(Settings.model_construct().home)


def base_url(of: Settings) -> str:
    """Where the service is: the setting, else what the running supervisor says, else the default."""
    if of.api_url is not None:
        return of.api_url
    home = ServiceHome(of.home)
    state = home.state() if home.is_locked() else None
    return state.url if state else of.effective_api_url


def open_client(of: Settings, *, wait_when_full: bool = True) -> PatchyardClient:
    """A client of the service. `wait_when_full` False: a full queue is an error at once."""
    policy = RetryPolicy() if wait_when_full else RetryPolicy(wait_when_full_s=0)
    return PatchyardClient(base_url(of), of.effective_token(), retry=policy)


def ensure_service(of: Settings, *, may_start: bool) -> None:
    """Make sure that a service answers, by starting one on this machine if need be. CliError, StartFailed."""
    home = ServiceHome(of.home)
    if home.is_locked():
        _wait_until_started(home)
    if _answers(base_url(of)):
        return
    if of.api_url is not None:
        raise CliError(f"No Patchyard service answers at {of.api_url}.", remedy="Check PATCHYARD_API_URL and that service.")
    if not may_start:
        raise CliError(
            "No Patchyard service is running.", remedy="Start it with `patchyard up --detach`, or leave out --no-start."
        )
    notice("No service is running: starting one (as `patchyard up --detach` does) …")
    ready = start_detached(of)
    notice(f"The service is up at {ready.url}; `patchyard down` stops it.")
    warn_if_volatile(of, ready.url)


def warn_if_volatile(of: Settings, url: str) -> None:
    """Say what may be lost in a service that was allowed to start on a Redis that does not keep its word."""
    if not of.allow_volatile_redis:
        return
    try:
        readiness = Readiness.model_validate_json(httpx.get(f"{url}/readyz", timeout=10, trust_env=False).content)
    except (httpx.TransportError, ValidationError):
        return
    for part in readiness.components:
        if part.state == "warning":
            stderr().print("WARNING:", style="bold red", end=" ")
            stderr().print(f"for development only. {part.detail}", markup=False)
            stderr().print(f"What to do: {part.remedy}", markup=False)


def _wait_until_started(home: ServiceHome) -> None:
    deadline = time.monotonic() + _STARTING_S
    while home.is_locked() and home.state() is None:
        if time.monotonic() > deadline:
            raise CliError(
                "The service is starting and does not become ready.", remedy=f"Look at {home.log_file('supervisor')}."
            )
        time.sleep(0.1)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", timeout=5, trust_env=False).is_success
    except httpx.TransportError:
        return False


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's asynchronous part."""
    # The import is here because most of what is imported with asyncio is not needed for `--help`.
    import asyncio

    return asyncio.run(work)


# --- output -------------------------------------------------------------------------------------

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


def examples(*lines: str) -> str:
    """The end of a command's help: command lines to copy."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def stdout() -> Console:
    """Results. Colours on a terminal, plain text otherwise."""
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _PIPED_WIDTH
    return console


def stderr() -> Console:
    """Notices and errors."""
    return Console(file=sys.stderr, highlight=False, soft_wrap=True)


def notice(text: str) -> None:
    """One line about what the command is doing."""
    stderr().print(text, style="dim", markup=False)


def print_json(value: BaseModel | dict[str, Any] | list[Any]) -> None:
    """One JSON document on one line."""
    text = value.model_dump_json() if isinstance(value, BaseModel) else json.dumps(value, ensure_ascii=False)
    click.echo(text)
