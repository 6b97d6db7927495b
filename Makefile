# `make` lists the targets. PYTHON=… names an interpreter (3.11 to 3.13), RECIPE=… and ARGS=… what `make train` runs.
#
# On Linux a plain `pip install torch` brings a CUDA build of several GB. Where no GPU is, or a wish for a smaller download,
# pass the index of CPU wheels that PyTorch's own installation page shows: make train PIP_ARGS="--extra-index-url <that index>".
# The pin in constraints.txt then takes the CPU build of the same version.

VENV    ?= .venv
RECIPE  ?= ppo/cartpole
ARGS    ?=
WORKERS ?= 2
DEV     := dev box2d mujoco offline onnx video
# Each extra that clashes with the pins of others gets an environment of its own; `all` is the rest.
CLASHES := metaworld gymnax legacy-gym

BIN    := $(VENV)/bin
setup  := PYTHON="$(PYTHON)" PIP_ARGS="$(PIP_ARGS)" scripts/setup.sh
# Nets in tests are tiny: a second thread only gets in the way of the second worker.
quiet  := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 SDL_VIDEODRIVER=dummy

.DEFAULT_GOAL := help
.PHONY: help setup train test test-slow lint format examples docs lock clean

help:           ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## *\(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup:          ## the virtual environment for development
	@$(setup) $(VENV) $(DEV)

train:          ## train CartPole with the default recipe (RECIPE=ppo/cartpole ARGS="learner.gamma=0.98")
	@$(setup) $(VENV)
	@$(BIN)/uniarena train $(RECIPE) $(ARGS)
	@echo "to use these commands: source $(VENV)/bin/activate"

test: setup     ## the fast tests
	@$(quiet) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q $(ARGS)

test-slow: setup ## the slow tests and every optional package; a skipped test is a failure
	@$(setup) .venvs/all dev all
	@$(quiet) .venvs/all/bin/python -m pytest -n $(WORKERS) -q -m "slow or extra" --fail-on-skip $(CLASHES:%=--without=%) $(ARGS)
	@for extra in $(CLASHES); do \
	    $(setup) .venvs/$$extra dev $$extra && \
	    $(quiet) .venvs/$$extra/bin/python -m pytest -q -m extra --fail-on-skip --only=$$extra $(ARGS) || exit 1; \
	done

lint: setup     ## format, style, types, direction of imports, budgets
	@verdict=0; \
	$(BIN)/ruff format --check . || verdict=1; \
	$(BIN)/ruff check --quiet . || verdict=1; \
	$(BIN)/mypy || verdict=1; \
	$(BIN)/lint-imports --no-cache --no-logo || verdict=1; \
	$(BIN)/python scripts/budgets.py || verdict=1; \
	exit $$verdict

format: setup   ## rewrite the sources in the project's style
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

examples: setup ## run every story in examples/
	@$(quiet) $(BIN)/python scripts/run_examples.py $(ARGS)

docs:           ## the API reference, from the docstrings, into build/docs
	@$(setup) $(VENV) $(DEV) docs
	@$(quiet) $(BIN)/python scripts/reference.py

lock: setup     ## rewrite constraints.txt
	@$(BIN)/python scripts/lock.py $(ARGS)

clean:          ## remove what was built or cached; runs and virtual environments stay
	@rm -rf build dist .pytest_cache .hypothesis .ruff_cache .mypy_cache .import_linter_cache .coverage
	@find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
