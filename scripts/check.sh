#!/usr/bin/env bash
# All static checks. Each prints what to do about what it found; the first failure stops.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
step() { printf '==> %s\n' "$1"; shift; "$@"; }
step "Layers (import-linter)" $bin/lint-imports --no-cache --no-timing 2>/dev/null || $bin/lint-imports --no-cache
step "Lint (ruff)"            $bin/ruff check --quiet .
step "Format (ruff)"          $bin/ruff format --quiet --check .
step "Types (mypy)"           $bin/mypy
step "Types (pyright)"        $bin/pyright --pythonpath $bin/python --warnings
step "Generated files"        $bin/python scripts/generate.py --check
step "Lock file"              scripts/lock.sh --check
