"""`up`, `down`, `status`, `doctor`: the service on this machine."""

import asyncio
import subprocess
import sys
from typing import Any

import click
from pydantic import ValidationError

from patchyard.cli.context import (
    base_url,
    examples,
    json_option,
    notice,
    open_client,
    print_json,
    service_home,
    settings,
    stdout,
    warn_if_volatile,
)
from patchyard.cli.errors import AlreadyRunning, CliError, ExitCode
from patchyard.cli.render.report import print_checks, print_components
from patchyard.cli.services import background
from patchyard.cli.services.home import ServiceHome, ServiceState
from patchyard.cli.services.supervisor import Supervisor
from patchyard.client import ConnectionFailed
from patchyard.protocol.service import DoctorReport, Readiness
from patchyard.settings import Settings


@click.command(epilog=examples("patchyard up --detach", "PATCHYARD_API_PORT=7500 patchyard up --workers 2"))
@click.option("--detach", is_flag=True, help="Start in the background and return when everything is ready.")
@click.option(
    "--workers", type=click.IntRange(0, 256), default=background.DEFAULT_WORKERS, show_default=True, help="Worker processes."
)
@json_option
def up(detach: bool, workers: int, as_json: bool) -> None:
    """Start Redis, the API and the workers on this machine."""
    config = settings()
    if detach:
        _up_detached(config, workers, as_json)
        return

    def ready(state: ServiceState) -> None:
        if as_json:
            print_json(state)
        else:
            _say_ready(state.url, state.pid)
            warn_if_volatile(config, state.url)
            notice("Ctrl-C stops it.")

    asyncio.run(Supervisor(config, workers=workers, on_ready=ready).run())


def _up_detached(config: Settings, workers: int, as_json: bool) -> None:
    try:
        started = background.start_detached(config, workers=workers)
    except AlreadyRunning as running:
        # Asked for a service in the background, and there is one: that is success. In the foreground it is not, because
        # the caller would watch nothing.
        if as_json:
            print_json({"url": running.url, "pid": running.pid, "already_running": True})
        else:
            notice(running.message)
        return
    if as_json:
        print_json({"url": started.url, "pid": started.pid, "already_running": False})
    else:
        _say_ready(started.url, started.pid)
    warn_if_volatile(config, started.url)


def _say_ready(url: str, pid: int) -> None:
    stdout().print(f"Patchyard is up at {url} (pid {pid}).")


@click.command(short_help="Stop the service.")
@json_option
def down(as_json: bool) -> None:
    """Stop what `patchyard up` started. Waiting and running tasks go on at the next start."""
    home = service_home()
    stopped = background.stop(home)
    if as_json:
        print_json({"was_running": stopped.was_running, "orphans": stopped.orphans})
    elif stopped.was_running or stopped.orphans:
        stdout().print("Patchyard is stopped.")
    else:
        stdout().print(f"Nothing was running for {home.root}.")


@click.command(short_help="Show whether the service is ready.")
@json_option
def status(as_json: bool) -> int:
    """Show whether the service runs and whether its parts answer. Exit code 1 when it is not ready."""
    config = settings()
    home = ServiceHome(config.home)
    state = home.state() if home.is_locked() else None
    readiness = asyncio.run(_readiness(config))
    if as_json:
        print_json(
            {
                "url": base_url(config),
                "pid": state.pid if state else None,
                "workers": state.workers if state else None,
                "redis": state.redis if state else None,
                "answers": readiness is not None,
                "ready": bool(readiness and readiness.ready),
                "components": [part.model_dump() for part in readiness.components] if readiness else [],
            }
        )
    elif readiness is None:
        where = "is starting" if home.is_locked() else "does not run"
        stdout().print(f"Patchyard {where} ({base_url(config)}). Start it with: patchyard up --detach")
    else:
        own = f", pid {state.pid}, {state.workers} worker process(es), Redis {state.redis}" if state else ""
        stdout().print(f"Patchyard answers at {base_url(config)}{own}.")
        print_components(readiness)
    return ExitCode.OK if readiness and readiness.ready else ExitCode.FAILED


async def _readiness(config: Settings) -> Readiness | None:
    async with open_client(config) as client:
        try:
            return await client.readiness()
        except ConnectionFailed:
            return None


@click.command(short_help="Check what Patchyard needs, each with the remedy.")
@json_option
def doctor(as_json: bool) -> int:
    """Check what Patchyard needs: engine, Redis durability, store, model, image. Exit code 1 when a check fails."""
    config = settings()
    report = asyncio.run(_doctor_of_service(config))
    if report is None:
        notice("No service is running: checking from here.")
        report = _doctor_of_this_machine()
    if as_json:
        print_json(report)
    else:
        print_checks(report)
    return ExitCode.OK if report.ok else ExitCode.FAILED


async def _doctor_of_service(config: Settings) -> DoctorReport | None:
    async with open_client(config) as client:
        try:
            return await client.doctor()
        except ConnectionFailed:
            return None


def _doctor_of_this_machine() -> DoctorReport:
    done: subprocess.CompletedProcess[Any] = subprocess.run(
        [sys.executable, "-m", "workers.doctor", "--json"], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    try:
        return DoctorReport.model_validate_json(done.stdout)
    except ValidationError as error:
        raise CliError(
            "The checks could not be run.",
            remedy="Is this a complete installation? `python -m workers.doctor` must work.",
            details=done.stderr.decode("utf-8", "replace")[-2000:],
        ) from error
