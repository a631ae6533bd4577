PYTHON ?= python3
VENV ?= .venv

BIN := $(VENV)/bin
LOCAL := $(VENV)/.installed-local
DEV := $(VENV)/.installed-dev
PYTEST := $(BIN)/python -m pytest
MAKEFLAGS += --no-print-directory

.PHONY: help venv dev model demo test test-fast lint format types docs-check check bench chaos clean

help: ## print this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1 /p' Makefile | while read -r name text; do printf '%-12s%s\n' "$$name" "$$text"; done
	@printf '\n%s\n' 'PYTHON=python3.12 chooses the interpreter, VENV=folder the environment ($(VENV)).'

venv: $(LOCAL) ## make the environment; the commands are in its bin/

dev: $(DEV) ## add what the checks need

$(LOCAL): pyproject.toml requirements/core.txt requirements/local.txt
	@scripts/venv '$(PYTHON)' '$(VENV)' requirements/local.txt local
	@touch $@

$(DEV): $(LOCAL) requirements/dev.txt
	@scripts/venv '$(PYTHON)' '$(VENV)' requirements/dev.txt local,dev
	@touch $@

model: venv ## get the small model, once (98 MB)
	@echo "model: $$($(BIN)/rollmill models pull)"

demo: venv model ## play two environments with the small model and look at the result
	@VENV='$(VENV)' scripts/demo

test: dev model ## run every test
	@$(PYTEST) -n 3 --dist loadfile

test-fast: dev ## run the tests without those marked slow
	@$(PYTEST) -n 3 --dist loadfile -m 'not slow'

lint: dev ## check style and formatting
	@$(BIN)/ruff check --quiet bench src tests
	@$(BIN)/ruff format --check --quiet bench src tests
	@echo 'lint: ruff is content'

format: dev ## repair style and formatting
	@$(BIN)/ruff check --quiet --fix bench src tests
	@$(BIN)/ruff format bench src tests

types: dev ## check types
	@$(BIN)/mypy

docs-check: dev model ## run the examples of the documentation
	@$(PYTEST) tests/test_docs.py

check: lint types docs-check test ## all of these

bench: venv ## measure against the floor, and write bench/results.md; takes a quarter of an hour and 8 GB
	@$(BIN)/python bench/run.py

chaos: dev ## kill, cut off, fill and confuse runs, and write tests/crash/chaos.md; takes three quarters of an hour
	@$(BIN)/python -m tests.crash.chaos

clean: ## remove the environment, caches and builds; runs/ and the model stay
	@for venv in '$(VENV)' .ci/venv; do [ ! -f "$$venv/pyvenv.cfg" ] || rm -rf "$$venv"; done
	@rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
