# leakbench: everything happens inside this folder. `make` alone lists the targets.

PYTHON  ?= python3
VENV    ?= .venv
PROFILE ?= quick
ARGS    ?=
# Processes that run tests: auto is one a core; 0 runs them in pytest's own, for a debugger.
WORKERS ?= auto
# The pair to install first; name versions or local files here to choose another build.
TORCH   ?= torch torchvision

BIN   := $(VENV)/bin
# Written after a complete install; a newer file of what it is made from makes the next call repeat it.
STAMP := $(VENV)/.installed
WHEEL := build/lint
# Each worker collects all tests: more than a few do that longer than they test. One that has nothing
# left to do takes over half of what another has in front of it.
PYTEST = $(BIN)/pytest -q -n $(WORKERS) --maxprocesses 8 --dist worksteal

# One thread a process: workers do the parallel work, and a second thread slows a busy machine down.
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install test test-slow test-modes lint format docs bench suite-table3 queue coverage clean FORCE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-zA-Z0-9_%-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' Makefile
	@echo
	@echo "  PYTHON=$(PYTHON)  VENV=$(VENV)  PROFILE=$(PROFILE)  OUT=$(OUT)  WORKERS=$(WORKERS)  ARGS='$(ARGS)' (passed on to the command)"

install: $(STAMP) ## make the virtual environment and install leakbench into it, editable

$(STAMP): pyproject.toml setup.py $(wildcard leakbench/native/*.c leakbench/native/*.inc)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "leakbench needs Python 3.11 or newer: make PYTHON=/path/to/python3 install" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	  || { echo "cannot make a virtual environment in $(VENV): is Python's venv module installed?" >&2; exit 1; }
	$(BIN)/python -m pip install $(TORCH)
	$(BIN)/python -m pip install -e '.[dev]'
	@touch $@

test: $(STAMP) ## run the tests that take seconds
	@$(PYTEST) -m "not slow and not gpu" $(ARGS)

test-slow: $(STAMP) ## run the tests that take minutes
	@$(PYTEST) -m "slow and not gpu" $(ARGS)

# Other kernels stand in for other processors; the last modes are a machine that rounds rows by their
# neighbours, and one without a C compiler.
MODES := LEAKBENCH_ARITHMETIC=portable MKL_CBWR=COMPATIBLE MKL_CBWR=AVX2,STRICT \
  LEAKBENCH_ARITHMETIC=fast \
  LEAKBENCH_ARITHMETIC=fast,ATEN_CPU_CAPABILITY=avx2,ONEDNN_MAX_CPU_ISA=AVX2 \
  LEAKBENCH_ROWS=dependent LEAKBENCH_COMPILED=no

test-modes: $(STAMP) ## run the tests under other arithmetic (ARGS: which; MODES: under which)
	@for mode in $(MODES); do \
	  case "$$mode" in *=*,*=*) settings=$$(echo "$$mode" | tr , ' ');; *) settings=$$mode;; esac; \
	  echo "=== $$settings"; \
	  env $$settings $(PYTEST) -m "not slow and not gpu" $(ARGS) || exit 1; \
	done

lint: $(STAMP) ## ruff, and mypy on the package as it is installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@# mypy does not follow the folder mapping: check what a user gets, the unpacked wheel.
	@# Left-overs of earlier builds would end up in the wheel, so they go first.
	@rm -rf build
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir $(WHEEL) .
	$(BIN)/python -m pip install --quiet --no-deps --no-index --target $(WHEEL)/site $(WHEEL)/*.whl
	cd $(WHEEL)/site && $(abspath $(BIN))/mypy --config-file $(CURDIR)/pyproject.toml \
	  --cache-dir $(CURDIR)/.mypy_cache -p leakbench

format: $(STAMP) ## put the code into ruff's format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# A warning is an error: a link that leads nowhere, a page that no menu has.
docs: $(STAMP) ## build the documentation, to open at build/docs/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict -f docs/site/mkdocs.yml

bench: $(STAMP) ## measure how fast attacks and training run (ARGS: what both know)
	$(BIN)/python benchmarks/attack.py $(ARGS)
	$(BIN)/python benchmarks/training.py $(ARGS)
	$(BIN)/python benchmarks/arithmetic.py
	$(BIN)/python benchmarks/jacobian.py

suite-table3: suite-tifs_table3 ## short for suite-tifs_table3

# A run in which some trials failed (exit code 1) still has a gallery to look at.
suite-%: $(STAMP) FORCE ## run a suite: make suite-NAME [PROFILE=paper] [OUT=DIR]
	@run='$(or $(OUT),results/runs/$*-$(PROFILE))'; \
	code=0; $(BIN)/leakbench run $* --profile $(PROFILE) --out "$$run" $(ARGS) || code=$$?; \
	if [ $$code -le 1 ]; then \
	  $(BIN)/leakbench gallery "$$run" || [ $$code -ne 0 ] || code=$$?; \
	fi; \
	exit $$code

queue: $(STAMP) ## run a profile of all suites, longest first (ARGS: which, --dry-run; OUT=DIR)
	$(BIN)/leakbench queue --profile $(PROFILE) $(if $(OUT),--out "$(OUT)") $(ARGS)

coverage: $(STAMP) ## write docs/coverage.md: which printed number stands in which suite
	$(BIN)/python scripts/coverage.py

clean: ## remove what was built and cached; the environment and the runs stay
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -not -path './.git/*' -prune -exec rm -rf {} +
