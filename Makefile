# Everything a developer does with tamis. `make` alone lists the targets.
# PYTHON=/path/to/python make setup chooses the interpreter; the default is the first of the list that is new enough.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
CANDIDATES := $(if $(PYTHON),$(PYTHON),python3.11 python3.12 python3.13 python3.14 python3 python)
JOBS ?= 2
JARS := .cache/jars
# The broker of the tests, of the same version as the client inside the connector.
BROKER := org.apache.kafka:kafka_2.13:3.9.2 org.slf4j:slf4j-simple:1.7.36

.PHONY: help setup system jars demo test lint format bench lab soak soak-bounds soak-spark docs constraints clean

help: ## this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: system $(STAMP) ## create .venv with everything to run and develop tamis (quick when nothing changed)

system:
	@tools/system

$(STAMP): pyproject.toml constraints.txt
	@chosen=""; \
	for candidate in $(CANDIDATES); do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then chosen="$$candidate"; break; fi; \
	done; \
	if [ -z "$$chosen" ]; then \
	  echo "make setup: tamis needs Python 3.11 or newer; tried: $(CANDIDATES)." >&2; \
	  echo "Install one, or name it: make setup PYTHON=/path/to/python3.11" >&2; exit 1; \
	fi; \
	if ! "$$chosen" -c 'import ensurepip, venv' >/dev/null 2>&1; then \
	  echo "make setup: $$chosen has no venv/ensurepip module (on Debian and Ubuntu: the package python3-venv)." >&2; exit 1; \
	fi; \
	if ! $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	  echo "creating $(VENV) with $$("$$chosen" --version)"; \
	  rm -rf $(VENV); "$$chosen" -m venv $(VENV); \
	fi
	@echo "installing the pinned versions of constraints.txt into $(VENV)"
	@# Without build isolation what builds tamis, and PySpark, which comes as sources, has to be there.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt hatchling editables setuptools wheel
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@
	@echo "ready: $(BIN)/tamis, $(BIN)/python"

jars: setup ## Spark's Kafka connector and a Kafka broker from Maven Central into .cache/jars (once)
	@$(BIN)/python -m tamis.spark.jars $(JARS)/connector
	@$(BIN)/python -m tamis.spark.jars $(JARS)/broker $(BROKER)

demo: setup ## the warehouse story on local Spark: 100,000 profiles, 1,000,000 events, a summary in HTML
	@$(BIN)/tamis demo

test: setup lint ## everything that must hold: lint, types, import contract, tests, executed examples
	@$(MAKE) --no-print-directory jars || echo "make test: the Kafka tests have no jars; with CI=true that fails them, else they are skipped" >&2
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

lint: setup ## ruff, mypy and the import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## let ruff rewrite the files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## run the benchmarks and write docs/results.md
	$(BIN)/python benchmarks/run.py

lab: setup ## the tables and figures of the papers at a small scale, and lab-results/report.html
	@status=0; $(BIN)/tamis lab run all || status=$$?; $(BIN)/tamis lab report; exit $$status

soak: setup ## the tests with long random runs (hypothesis profile 'soak')
	HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest -n $(JOBS) tests
	$(BIN)/python tests/soak/run.py
	$(BIN)/python tests/soak/graphs.py
	$(BIN)/python tests/soak/topics.py

soak-bounds: setup ## short random runs with every access to an array checked; all kernels compile anew
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=.cache/bounds $(BIN)/python tests/soak/topics.py --events 100000
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=.cache/bounds $(BIN)/python tests/soak/run.py --quick

soak-spark: setup ## kill a Spark pipeline a hundred times over a million events
	$(BIN)/python tests/soak/spark.py

docs: setup ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

constraints: ## renew constraints.txt from a fresh environment
	@rm -rf .cache/constraints-venv
	@for candidate in $(CANDIDATES); do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then "$$candidate" -m venv .cache/constraints-venv; break; fi; \
	done
	@.cache/constraints-venv/bin/python -m pip install --quiet --disable-pip-version-check setuptools wheel '.[dev]'
	@head -2 constraints.txt > .cache/constraints.txt
	@.cache/constraints-venv/bin/python -m pip freeze --all --exclude pip --exclude tamis >> .cache/constraints.txt
	@mv .cache/constraints.txt constraints.txt
	@rm -rf .cache/constraints-venv

clean: ## remove everything that make created
	rm -rf $(VENV) .cache site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .benchmarks lab-results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
