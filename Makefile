# Every target works as root and as an ordinary user, needs nothing but make and a Python >= 3.11 with venv, and takes
# PYTHON= (the interpreter). The environment in .venv is built from the lock files when it is missing or out of date.

PYTHON ?= python3
STORE ?= sqlite
# Test processes beside each other, and further arguments for pytest, for instance ARGS="-k mounted -x".
WORKERS ?= 2
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
ORDINARY := -n $(WORKERS) -m "not soak and not root"

.DEFAULT_GOAL := help
.PHONY: help demo test test-root soak mutants cov lint bench bench-full bench-check evidence docs lock clean runtime dev python

help: ## show this list
	@echo "make TARGET [PYTHON=python3.12]"
	@sed -n 's/^\([a-z-]*\):[^#]*## /  \1\t/p' Makefile | expand -t 14; echo

demo: $(if $(filter postgres,$(STORE)),dev,runtime) ## the whole life of a secret on this machine, in a few seconds (STORE=sqlite or postgres)
	@$(BIN)/secret-sidecar demo --store $(STORE)

test: dev ## every test that needs neither root nor minutes
	@$(PYTEST) $(ORDINARY) $(ARGS)

test-root: dev ## the tests that need root: mounts, namespaces, other users
	@test "$$(id -u)" = 0 || { echo "make test-root: run it as root" >&2; exit 77; }
	@$(PYTEST) -m "root and not soak" $(ARGS) || { code=$$?; test $$code = 5 || exit $$code; \
	  echo "make test-root: no test is marked root, so none was run"; }

soak: dev ## long runs (storms, memory scans, state machines), then the mutants; at most 30 minutes
	@$(PYTEST) -m soak --hypothesis-profile=soak $(ARGS)
	@$(BIN)/python -m tests.mutants

mutants: dev ## each promise of the threat model broken in one line: the named test must fail
	@$(BIN)/python -m tests.mutants

cov: dev ## branch coverage of provider/: 100 %
	@$(PYTEST) $(ORDINARY) --cov --cov-fail-under=100 $(ARGS)

lint: dev ## ruff (rules and format) and mypy --strict
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: dev ## the short benchmark, a few minutes; results in bench/results
	@$(BIN)/python -m bench.run

bench-full: dev ## every benchmark of docs/performance.md, about 17 minutes on a quiet machine
	@$(BIN)/python -m bench.run --full --seconds 1
	@for name in handshakes stages floor memory replicas postgres refusals; do \
	  echo "bench: $$name ..." >&2; $(BIN)/python -m bench.$$name || exit 1; done

bench-check: dev ## the ratios of now against the stored ones of this machine (take them with: python -m bench.check --store)
	@$(BIN)/python -m bench.check

evidence: dev ## as root: two sidecars in namespaces through a rotation, one line a gate; report in build/
	@$(BIN)/python -m tests.evidence $(ARGS)

docs: dev ## write the generated tables and plots of docs/ anew from code and results
	@$(BIN)/python -m bench.docs

lock: python ## resolve requirements/*.in into the lock files, for Linux and CPython >= 3.11
	@$(PYTHON) requirements/environment.py .venv-tools tools
	@cd requirements && for name in build tools runtime dev; do \
	  ../.venv-tools/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	    --no-header --no-emit-index-url --no-emit-find-links --output-file $$name.txt $$name.in || exit 1; done

clean: ## remove everything that make built
	@rm -rf .venv .venv.lock .venv-tools .venv-tools.lock .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache \
	  .ruff_cache build dist *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

runtime: python
	@$(PYTHON) requirements/environment.py $(VENV) runtime

dev: python
	@$(PYTHON) requirements/environment.py $(VENV) dev

# In words that any Python understands, so that an old one is named as such.
python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "make: PYTHON=$(PYTHON) is no Python >= 3.11; name one, for instance: make test PYTHON=python3.12" >&2; exit 1; }
