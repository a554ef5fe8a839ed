# Everything a newcomer needs: `make demo` and `make test` work on a machine with Python >= 3.11 and
# make alone. The virtual environment is made on first use and renewed when pyproject.toml changes.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The pip that comes with Python 3.11 takes a third longer than the newest; no warnings, as it warns
# of every setting that a machine has for it.
PIP := pip install --quiet --quiet --disable-pip-version-check
JOBS ?= 2
# A second environment on top of the first: `make test` goes on seeing what a newcomer has.
EXTRAS := $(VENV)/extras
PYTEST := OMP_NUM_THREADS=1 HYPOTHESIS_PROFILE=ci
PYTEST_WORKERS := -m pytest -n $(JOBS) --dist loadfile

# A module is compiled at its first import, as most of what is installed is never imported, and kept,
# as hundreds of tests start the command line.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-extras made-up left-out lint types layers lines docs tests format golden wheel clean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/\1|\2/p' Makefile | awk -F'|' '{printf "make %-11s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m $(PIP) --upgrade pip
	$(BIN)/python -m $(PIP) --no-compile --editable '.[development]'
	@touch $@

venv: $(STAMP)  ## make the virtual environment .venv and install Tilesmith into it

demo: $(STAMP)  ## tune ResNet-50 on this CPU for 3 minutes, compile it, compare and time it
	$(BIN)/python examples/demo.py

test: $(STAMP)  ## everything continuous integration checks, two things at a time
	@$(MAKE) --no-print-directory -j 2 tests lint layers types docs

$(EXTRAS)/.installed: $(STAMP) .ci/install
	.ci/install $(EXTRAS)
	@touch $@

test-extras: $(EXTRAS)/.installed  ## install PyTorch, JAX, Ray, servers and an emulator; run the tests that need them
	$(PYTEST) $(EXTRAS)/bin/python $(PYTEST_WORKERS) -m extra

lint: $(STAMP)  ## ruff: style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## mypy, strict
	$(BIN)/mypy

layers: $(STAMP)  ## import-linter: each package imports only those below it
	$(BIN)/lint-imports

lines:  ## lines of the kernel, the rest of the core, each family, each capability
	@$(PYTHON) benchmarks/lines.py

docs: $(STAMP)  ## the documentation site, into build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

tests: $(STAMP)  ## pytest
	$(PYTEST) $(BIN)/python $(PYTEST_WORKERS)

HOSTS := $(basename $(notdir $(wildcard tests/hosts/*.toml)))

made-up: $(STAMP)  ## the tests of CPUs again, as if this machine were each of tests/hosts (HOSTS="zen4 ...")
	for host in $(HOSTS); do \
		TILESMITH_CPU=tests/hosts/$$host.toml $(PYTEST) $(BIN)/python $(PYTEST_WORKERS) tests/simulator/cpu tests/codegen \
			--ignore tests/families/lpu/codegen --ignore tests/families/trainium/codegen || exit; \
	done

left-out: $(STAMP)  ## the tests again in copies, each without one family or capability
	$(PYTEST) $(BIN)/python -m pytest -n $(JOBS) -m apart tests/packaging

format: $(STAMP)  ## let ruff rewrite the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

golden: $(STAMP)  ## accept the printed programs as they are now (read the diff)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile tests/golden --update-golden

wheel: $(STAMP)  ## the wheel that pip installs, into dist: pure Python, for x86-64 and AArch64
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
