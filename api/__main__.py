"""`python -m api`: the API with the server settings that it needs."""

import argparse
import json
import logging
import socket
import sys

import uvicorn

from patchyard.settings import Settings, load
from patchyard.settings_file import complaint

from .app import create_app
from .deps import Deps, StartRefused, build

_GRACE_S = 5
"""Seconds for open requests at shutdown. Event streams end by themselves at once; without a limit one client could hold us."""


class Server(uvicorn.Server):
    """Tells event streams to end before it waits for open connections, and why it could not start."""

    def __init__(self, config: uvicorn.Config, deps: Deps) -> None:
        super().__init__(config)
        self._deps = deps

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn.Server.shutdown."""
        self._deps.stopping.set()
        await super().shutdown(sockets)


class LastWord(logging.Filter):
    """Of a start that was refused only the reason is logged: the way through the code tells its reader nothing."""

    def filter(self, record: logging.LogRecord) -> bool:
        """See logging.Filter."""
        _, refused, reason = record.getMessage().rpartition(f"{StartRefused.__name__}: ")
        if refused:
            record.msg, record.args = f"the API does not start: {reason.strip()}", None
        return True


def main() -> int:
    """Serve until SIGTERM. Exit code 1 with one line on stderr when it must not start."""
    parser = argparse.ArgumentParser(prog="python -m api", description="The Patchyard API.")
    parser.add_argument("--fd", type=int, help="a listening socket that was opened by whoever started this process")
    parser.add_argument("--openapi", action="store_true", help="print the API's description and exit")
    options = parser.parse_args()
    try:
        settings = load()
    except ValueError as error:
        print(f"api: the settings are wrong: {complaint(error)}", file=sys.stderr)
        return 1
    try:
        if options.openapi:
            print(openapi_text(settings))
            return 0
        return _serve(settings, options.fd)
    except StartRefused as error:
        print(f"api: {error}", file=sys.stderr)
        return 1


def openapi_text(settings: Settings) -> str:
    """The OpenAPI document, in the form that is kept in git."""
    return json.dumps(create_app(settings).openapi(), indent=1, sort_keys=True, ensure_ascii=False)


def _serve(settings: Settings, fd: int | None) -> int:
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(LastWord())
    deps = build(settings)
    config = uvicorn.Config(
        create_app(settings, deps=deps),
        host=settings.api_host,
        port=settings.api_port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=_GRACE_S,
        server_header=False,
        lifespan="on",
    )
    server = Server(config, deps)
    server.run(sockets=[socket.socket(fileno=fd)] if fd is not None else None)
    return 0 if server.started else 1


if __name__ == "__main__":
    sys.exit(main())
