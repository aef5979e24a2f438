"""`python -m patchyard.replay serve --script FILE`: the replay model as a process of its own."""

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

from patchyard.replay.errors import ReplayError
from patchyard.replay.script import load_script
from patchyard.replay.server import Demands, ReplayServer
from patchyard.replay.violations import Violation


def _say(payload: dict[str, Any], text: str, *, as_json: bool) -> None:
    print(json.dumps(payload) if as_json else text, flush=True)


async def _serve(server: ReplayServer, *, as_json: bool, until_eof: bool) -> int:
    await server.start()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    _say({"base_url": server.base_url}, server.base_url, as_json=as_json)
    watching = loop.create_task(_stop_at_eof(stop)) if until_eof else None
    try:
        await stop.wait()
    finally:
        if watching is not None:
            watching.cancel()
        await server.close()
    requests, violations = server.log.count, server.violations.count
    text = f"{requests} requests, {violations} violations"
    _say({"requests": requests, "violations": violations}, text, as_json=as_json)
    return 1 if violations else 0


async def _stop_at_eof(stop: asyncio.Event) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(4096):
        pass
    stop.set()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m patchyard.replay", description="A scripted model that checks its client.")
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="answer model requests from a script; exit 1 if a client broke a rule")
    serve.add_argument("--script", type=Path, required=True, metavar="FILE", help="YAML or JSON")
    serve.add_argument("--port", type=int, default=0, help="0: any free port (default)")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--json", action="store_true", help="print JSON lines")
    serve.add_argument("--until-eof", action="store_true", help="also stop when stdin closes, as it does when the parent dies")
    serve.add_argument(
        "--keep-bodies", type=int, default=0, metavar="N", help="bodies of requests to keep in memory (default 0)"
    )
    serve.add_argument("--upgrade-status", type=int, metavar="N", help="refuse WebSockets with this status (426: SSE only)")
    serve.add_argument(
        "--require-header", action="append", default=[], metavar="NAME=VALUE", help="answer 401 without it (api-key=…)"
    )
    serve.add_argument(
        "--require-query", action="append", default=[], metavar="NAME=VALUE", help="answer 404 without it (api-version=…)"
    )
    return parser


def _pairs(given: list[str], *, lower: bool) -> dict[str, str]:
    pairs = (text.partition("=") for text in given)
    return {name.lower() if lower else name: value for name, _, value in pairs}


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 no violation, 1 violations, 2 a script or address that cannot be used."""
    arguments = _parser().parse_args(argv)

    def show(violation: Violation) -> None:
        _say({"violation": violation.as_dict()}, str(violation), as_json=arguments.json)

    try:
        server = ReplayServer(
            load_script(arguments.script),
            host=arguments.host,
            port=arguments.port,
            keep_bodies=arguments.keep_bodies,
            on_violation=show,
            demands=Demands(_pairs(arguments.require_header, lower=True), _pairs(arguments.require_query, lower=False)),
            upgrade_status=arguments.upgrade_status,
        )
        return asyncio.run(_serve(server, as_json=arguments.json, until_eof=arguments.until_eof))
    except ReplayError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
