# Everything runs in .venv, which the first target that needs it creates.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# How many processes share the tests; 0 is none, for a debugger.
WORKERS ?= auto

.PHONY: help demo test crash hostile fuzz lint types run-env dev-env python
.DEFAULT_GOAL := help

help:
	@echo 'make demo    serve a chat on this machine and talk to it; the data stays in ./demo-data'
	@echo 'make test    run the tests (ARGS="-k name" selects, COVERAGE=1 measures, WORKERS=0 runs them in one process)'
	@echo 'make crash   kill a loaded server 500 times'
	@echo 'make hostile send a server 200,000 hostile frames'
	@echo 'make fuzz    judge the prompts of 10,000 generated histories, where ../shared/oracles is'
	@echo 'make sim     run 10,000 simulated worlds (SEEDS=n: so many)'
	@echo 'make lint    run ruff'
	@echo 'make types   run mypy'

demo: run-env
	@$(BIN)/python examples/demo.py

test: dev-env
ifdef COVERAGE
	$(BIN)/python -m coverage run -m pytest -q $(ARGS)
	$(BIN)/python -m coverage report
else
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal $(ARGS)
endif

# The long runs of what `make test` runs in short.
crash: dev-env
	PARLATORY_CRASH_ROUNDS=500 $(BIN)/python -m pytest -q tests/crash $(ARGS)

hostile: dev-env
	PARLATORY_HOSTILE_FRAMES=200000 $(BIN)/python -m pytest -q tests/hostile $(ARGS)

# Three minutes on a quiet core; `.ci/run` judges 500 of them.
fuzz:
	.ci/oracles 10000

# Six minutes on two quiet cores; `make test` runs 300 of them.
SEEDS ?= 10000
sim: dev-env
	PARLATORY_SIM_SEEDS=$(SEEDS) $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal tests/sim $(ARGS)

lint: dev-env
	$(BIN)/python -m ruff check .

# Type checkers cannot follow the mapping of the top-level folders onto packages; a tree of links shows them the same.
types: dev-env
	@mkdir -p .types/parlatory
	@ln -sfn ../../actors ../../server ../../storage ../../parlatory/__init__.py ../../parlatory/py.typed .types/parlatory/
	$(BIN)/python -m mypy -p parlatory.storage -p parlatory.actors -p parlatory.server -p tests

# Stamps: what was installed, for which checkout. An installation is redone only when pyproject.toml (or the place) changes.
stamp = { pwd; cat pyproject.toml; }
fresh = $(BIN)/python -c '' 2>/dev/null && $(stamp) | cmp -s - $(VENV)/$(1)
pip = $(BIN)/python -m pip --disable-pip-version-check install --quiet

# The SDK wants an older websockets than the server, for a transport that is not used with its sessions.
AGENTS := openai-agents>=0.24,<0.25

run-env:
	@$(call fresh,run.stamp) || { $(MAKE) --no-print-directory python && $(pip) -e . && $(stamp) >$(VENV)/run.stamp; }

dev-env:
	@$(call fresh,dev.stamp) || { $(MAKE) --no-print-directory python && $(pip) -e '.[dev]' \
	  && $(pip) --no-deps '$(AGENTS)' && $(stamp) >$(VENV)/run.stamp && $(stamp) >$(VENV)/dev.stamp; }

python:
	@command -v $(PYTHON) >/dev/null || { echo 'Python 3.11 or newer is needed, and there is no $(PYTHON): name one with PYTHON=...' >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed, and $(PYTHON) is $$($(PYTHON) -V 2>&1): name a newer one with PYTHON=..." >&2; exit 2; }
	@$(BIN)/python -c '' 2>/dev/null || { echo 'Setting up $(VENV) ...' >&2; $(PYTHON) -m venv --clear $(VENV); }
