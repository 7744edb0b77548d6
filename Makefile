# Every target sets itself up: all it needs is make and a Python 3.11 or newer. ARGS goes to the program that is run:
#
#   make compare ARGS="--help"      make test ARGS=tests/tasks      make check

PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)

ifdef UV
# The full path keeps uv from choosing, or downloading, another interpreter.
CREATE = $(UV) venv --quiet --clear --python "$$(command -v $(PYTHON))" $(VENV)
INSTALL = $(UV) pip install --quiet --python $(BIN)/python
NEEDED = sys
else
CREATE = $(PYTHON) -m venv --clear $(VENV)
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check
NEEDED = sys, pip
endif

RECENT = import $(NEEDED); sys.exit(sys.version_info < (3, 11))

# Empty as long as the environment works. Otherwise both stamps depend on making it anew, whatever is left of it.
REPAIR := $(shell $(BIN)/python -c '$(RECENT)' 2>/dev/null || echo environment)

.PHONY: compare test test-all test-extras test-newest test-versions mutants stress bench check docs dist clean environment
.NOTPARALLEL:

compare: $(VENV)/.installed
	@$(BIN)/attractor compare $(ARGS)

# Tests start many interpreters, which should not compile the sources again, whatever the environment says.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Runs the tests that are not marked slow.
test: $(VENV)/.installed-dev
	@$(PYTEST) -m "not slow" $(ARGS)

# Runs every test. ARGS="-m slow": those that `make test` leaves out.
test-all: $(VENV)/.installed-dev
	@$(PYTEST) $(ARGS)

# Runs the tests that are skipped without the extras ray and peers, and installs these extras.
test-extras: $(VENV)/.installed-dev
	@$(INSTALL) -c constraints.txt -e '.[ray,peers]'
	@$(PYTEST) tests/study/test_ray.py tests/bench/test_bench_peers.py \
	  tests/test_import.py tests/bench/test_bench_command.py $(ARGS)

# Runs tests of generation and of exports with the newest transformers, which constraints.txt holds back, in a folder that
# is searched before the other packages. Without an index to install from, it says so and passes.
test-newest: $(VENV)/.installed-dev
	@if $(INSTALL) --upgrade --target $(VENV)/newest transformers; then \
	  export PYTHONPATH=$(CURDIR)/$(VENV)/newest && \
	  $(BIN)/python -c 'import transformers; print("with transformers", transformers.__version__)' && \
	  $(PYTEST) tests/hf/test_hf_generate.py tests/hf/test_replace.py tests/hf/test_export.py \
	    -k "hf_generate or test_replace or without_attractor or needs_no_attractor or exported_code" $(ARGS); \
	else echo "NOT TESTED with the newest transformers, which could not be installed"; fi

# Runs the tests of both ends of the versions of transformers that pyproject.toml allows.
test-versions: test-newest
	@$(PYTEST) tests/hf/test_export.py -k oldest $(ARGS)

# Plants 30 faults, one at a time, and shows which test notices each. ARGS="--n 10 --seed 1 --files verdict": others.
mutants: $(VENV)/.installed-dev
	@$(BIN)/python tests/mutation.py $(ARGS)

bench: $(VENV)/.installed
	@$(BIN)/attractor bench $(ARGS)

STRESS = flip_bytes signals kills power_cut rank_faults hostile_files

# Kills, power cuts, signals, faults of ranks and damaged files: nothing may be lost. A quarter of an hour, two scripts
# at a time. ARGS="10 3": ten of each, drawn from seed 3.
stress: $(VENV)/.installed-dev
	@echo $(STRESS) | tr ' ' '\n' | PYTHONPATH=tests OMP_NUM_THREADS=1 \
	  xargs -P 2 -I{} sh -c '$(BIN)/python -u tests/stress/{}.py $(ARGS) || { echo "{} FAILED"; exit 1; }'

check: $(VENV)/.installed-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# Runs the code of the pages that train, then builds the site. ARGS=docs/stabilise.md: the code of that page alone.
docs: $(VENV)/.installed-dev
	@OMP_NUM_THREADS=1 $(BIN)/python docs/run_blocks.py $(ARGS)
	@$(BIN)/sphinx-build -q -W --keep-going -d dist/.doctrees -b html docs dist/docs
	@echo dist/docs/index.html

# Builds the wheel and the source archive, and checks what an index would say of them.
dist: $(VENV)/.installed-dev
	@$(INSTALL) build twine
	@$(BIN)/python -m build --outdir dist . >/dev/null && $(BIN)/twine check --strict dist/*.whl dist/*.tar.gz

$(VENV)/.installed: pyproject.toml constraints.txt $(REPAIR)
	@echo "installing into $(VENV): once, and a few minutes where torch must be downloaded"
	@$(INSTALL) -c constraints.txt -e '.[train]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt $(REPAIR)
	@echo "installing into $(VENV): once, and a few minutes where torch must be downloaded"
	@$(INSTALL) -c constraints.txt -e '.[dev]'
	@touch $@

environment:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "PYTHON must be Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1);" \
	    "run make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(CREATE)

# Keeps runs/, which is yours, and the downloads in .venv, which the next target brings up to date.
clean:
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis dist $(VENV)/.installed $(VENV)/.installed-dev
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
