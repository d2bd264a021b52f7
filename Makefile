# From a fresh machine with Python 3.11 or newer and make: `make demo`, `make test`.
SHELL := /bin/sh
VENV_PYTHON := .venv/bin/python
# The newest name first would pick a Python that torch has no wheel for yet; 3.11 is what is tested.
FIND_PYTHON := for p in python3.11 python3.12 python3.13 python3 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done
PYTHON ?= $(shell test -x $(VENV_PYTHON) && echo $(VENV_PYTHON) || { $(FIND_PYTHON); })

.DEFAULT_GOAL := help
.PHONY: help setup demo test check clean bench-promql bench-gate bench-udf bench-modes bench-idle bench-reaction crash fuzz

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*  ## /\1 \t/p' $(MAKEFILE_LIST) | expand -t 16

setup:  ## create .venv and install everything into it (quick when nothing changed)
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo \
	"setup: error: Python 3.11 or newer is needed: install it, or run make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -m tools.setup

demo: setup  ## the main job on a real vLLM: overload, policies, undo, replay (5 minutes)
	@$(VENV_PYTHON) -m demo

test: setup  ## the whole test suite, live tests included, in stages with a time budget each
	@$(VENV_PYTHON) -m tools.run_stages test

check: setup  ## ruff, mypy, pyright and the import contracts
	@$(VENV_PYTHON) -m tools.run_stages static

bench-promql: setup  ## the PromQL evaluator against its bar
	@$(VENV_PYTHON) bench/promql/run.py

bench-gate: setup  ## latency and CPU that the gate adds to a request
	@$(VENV_PYTHON) bench/gate/run.py $(ARGS)

.PHONY: bench-overload bench-budget bench-tenants bench-priority
bench-overload: setup  ## bare vLLM, its own queue limit and rules/ at 1x and 3x (6 minutes; ARGS='--runs 3': 18)
	@$(VENV_PYTHON) bench/overload/run.py $(ARGS)

bench-budget: setup  ## time-out only, with retries, with idempotency: p99, failures, duplicates
	@$(VENV_PYTHON) bench/path/budget.py $(ARGS)

bench-tenants: setup  ## what a tenant at ten times its share does to another's p99
	@$(VENV_PYTHON) bench/path/tenants.py $(ARGS)

bench-priority: setup  ## wait inflation with 100 and 1,000 clients, by ageing and by strict order
	@$(VENV_PYTHON) bench/path/priority.py $(ARGS)

.PHONY: bench-decide
bench-decide: setup  ## what one tick's decisions cost, and the memory of a week
	@$(VENV_PYTHON) bench/decide/run.py

bench-udf: setup  ## what a sandboxed UDF call costs
	@$(VENV_PYTHON) bench/udf/run.py

bench-modes: setup  ## batch, hybrid and stream mode of a real vLLM side by side
	@$(VENV_PYTHON) bench/core/modes.py

.PHONY: bench-ladder
bench-ladder: setup  ## the rungs of a fallback ladder on a real vLLM side by side
	@$(VENV_PYTHON) bench/core/ladder.py

bench-idle: setup  ## what the plug-in costs a real vLLM while no lever is claimed
	@$(VENV_PYTHON) bench/core/idle.py

bench-reaction: setup  ## from a breach to its enforcement, beside Prometheus and Alertmanager
	@$(VENV_PYTHON) bench/reaction/run.py

crash: setup  ## kill -9 the engine at every step of its journal, against a real vLLM (3 to 15 minutes)
	@RESILIENCE_CRASH=all $(VENV_PYTHON) -m pytest -q -s tests/live/test_crash.py --timeout=3600

.PHONY: simulate
SEEDS ?= 1000
TICKS ?= 55
JOBS ?=
FIRST_SEED ?= 1
simulate: setup  ## the whole engine under simulated faults: make simulate SEEDS=10000 TICKS=55
	@$(VENV_PYTHON) tests/simulation/run.py --seed $(FIRST_SEED) --seeds $(SEEDS) --ticks $(TICKS) $(if $(JOBS),--jobs $(JOBS))

fuzz: setup  ## throw generated code at the UDF sandbox
	@$(VENV_PYTHON) tests/sandbox/fuzz.py

clean:  ## remove what was built: environment, model cache, outputs
	rm -rf .venv .cache out dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
