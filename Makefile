# Thin: every target calls one script. Bare `make` prints this help.
.DEFAULT_GOAL := help
.PHONY: help setup demo test check format generate lock bugs fuzz bench up down clean
PY := .venv/bin/python

help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  \033[1m%-10s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Set this machine up (virtual environment, Docker engine, sandbox image)
	@scripts/setup.sh demo

demo: setup ## Run the main job: one real bug to one verified patch
	@$(PY) scripts/demo.py

test: ## Set up, run all checks, then all tests
	@scripts/setup.sh test
	@scripts/check.sh
	@$(PY) scripts/run_tests.py

check: ## Layers, lint, types, sizes, generated files
	@scripts/setup.sh python
	@scripts/check.sh

format: ## Format the code
	@.venv/bin/ruff check --fix-only --quiet . ; .venv/bin/ruff format --quiet .

generate: ## Write the generated files anew (schemas, types, span list, golden files)
	@$(PY) scripts/generate.py

lock: ## Resolve the dependencies anew into requirements.lock
	@scripts/lock.sh

bugs: setup ## Run the main job on all eight released bugs
	@$(PY) scripts/bugs.py

fuzz: ## Compare apply_patch with the real program on 5,000 random patches
	@$(PY) -m tests.conformance.patch_fuzz --examples 5000

bench: setup ## Measure, side by side with what people would use instead
	@$(PY) -m bench

up: setup ## Start Patchyard on this machine
	@PATCHYARD_HOME=$${PATCHYARD_HOME:-$(CURDIR)/.patchyard} .venv/bin/patchyard up

down: ## Stop it
	@PATCHYARD_HOME=$${PATCHYARD_HOME:-$(CURDIR)/.patchyard} .venv/bin/patchyard down

clean: ## Remove what the targets made (not the sandbox image)
	@rm -rf .venv .patchyard .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
