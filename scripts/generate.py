"""Writes all generated files, or with --check fails and names those that are out of date."""

import argparse
import difflib
import json
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

Generator = Callable[[], dict[str, str]]


def _json(value: object) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def schema_files() -> dict[str, str]:
    """JSON Schemas of the protocol."""
    from patchyard.protocol.schema import schemas

    return {f"patchyard/protocol/schemas/{name}.json": _json(schema) for name, schema in schemas().items()}


def typescript_files() -> dict[str, str]:
    """TypeScript types of the protocol, from the same schemas."""
    from patchyard.protocol.schema import schemas
    from scripts.typescript import render

    return {"web/src/generated/protocol.ts": render(schemas())}


def openapi_file() -> dict[str, str]:
    """The REST API's description."""
    from api.app import create_app

    return {"api/openapi.json": _json(create_app().openapi())}


def spans_file() -> dict[str, str]:
    """The list of spans and attributes."""
    from observability.names import reference

    return {"observability/SPANS.md": reference()}


def cli_help_files() -> dict[str, str]:
    """The help of each command, as a person sees it."""
    from scripts.cli_help import render

    return {"docs/cli.md": render()}


def chart_readme_file() -> dict[str, str]:
    """The chart's table of values."""
    from scripts.chart_readme import render

    return {"deploy/helm/patchyard/README.md": render()}


GENERATORS: tuple[Generator, ...] = (
    schema_files,
    typescript_files,
    openapi_file,
    spans_file,
    cli_help_files,
    chart_readme_file,
)


def main() -> int:
    """Exit code 1 when --check finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file would change")
    check = parser.parse_args().check
    stale = 0
    for generator in GENERATORS:
        for name, text in generator().items():
            path = ROOT / name
            old = path.read_text() if path.is_file() else ""
            if old == text:
                continue
            if check:
                stale += 1
                print("".join(list(difflib.unified_diff(old.splitlines(True), text.splitlines(True), name, "generated"))[:20]))
                print(f"{name}:1: out of date: run `make generate` and commit it")
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
                print(f"wrote {name}")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
