#!/usr/bin/env bash
# Writes requirements.lock: every version with its hashes, for all platforms, without any index address.
# Usage: scripts/lock.sh [--check]   (--check: fail when the file is out of date)
set -euo pipefail
cd "$(dirname "$0")/.."
out=requirements.lock
[ "${1:-}" = "--check" ] && { out=$(mktemp); trap 'rm -f "$out"' EXIT; cp requirements.lock "$out"; }
uv=$(command -v uv || echo .venv/bin/uv)
env -u PIP_FIND_LINKS -u UV_FIND_LINKS "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-emit-find-links --no-annotate --no-header \
  --extra embedded --group dev pyproject.toml --output-file "$out" >/dev/null
if [ "${1:-}" = "--check" ]; then
  diff -u requirements.lock "$out" || { echo "requirements.lock is out of date: run make lock" >&2; exit 1; }
fi
