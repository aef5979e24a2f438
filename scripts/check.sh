#!/usr/bin/env bash
# All static checks. Each prints what to do about what it found; the first failure stops.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
step() { printf '==> %s\n' "$1"; shift; "$@"; }
layers() { $bin/lint-imports --no-cache >.patchyard/layers.log 2>&1 || { grep -v '[╔║╚╩]' .patchyard/layers.log; return 1; }; }
mkdir -p .patchyard
step "Layers (import-linter)" layers
step "Lint (ruff)"            $bin/ruff check --quiet .
step "Format (ruff)"          $bin/ruff format --quiet --check .
step "Types (mypy)"           $bin/mypy
step "Types (pyright)"        $bin/pyright --pythonpath $bin/python --warnings
step "Generated files"        $bin/python scripts/generate.py --check
step "Lock file"              scripts/lock.sh --check
step "Architecture (layers bite, importing does nothing, sizes, the core alone)" $bin/python -m pytest -q tests/architecture
