# The whole set-up of a checkout. `make` alone prints this list.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo test test-slow test-pages test-all campaign check format docs bench clean
.DEFAULT_GOAL := help

help: ## print this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/installed ## install, then run the main job on the embedded digits
	$(BIN)/intnacl run

test: .venv/installed-dev ## install, then run the tests (minutes)
	$(BIN)/python -m pytest -n auto -m "not slow and not campaign"

test-slow: .venv/installed-all ## run the slow tests (Ray, ONNX, the wheel, kills; a browser where chromium is installed)
	$(BIN)/python -m pytest -n auto -m "slow and not campaign"

test-pages: .venv/installed-all ## run those of the slow tests that need a browser, other packages or a wheel
	$(BIN)/python -m pytest -n auto -m slow tests/runs/test_explorer.py tests/runs/test_listing_page.py \
		tests/runs/test_page.py tests/paper/test_page.py tests/test_examples.py tests/test_site.py tests/test_release.py

test-all: test test-slow ## run all but the campaign

campaign: .venv/installed-all ## try thousands of malformed inputs and a hundred kills (an hour)
	$(BIN)/python -m pytest -n auto -m campaign

check: .venv/installed-dev ## format, lint, strict types, fast tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) test

format: .venv/installed-dev ## rewrite the code in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/installed-docs ## build the documentation site in docs/_build/html; warnings are errors
	rm -rf docs/_build docs/reference
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -c docs . docs/_build/html
	@echo "docs/_build/html/index.html"

bench: .venv/installed-dev ## time and memory against the alternatives
	$(BIN)/python benchmarks/loss.py
	$(BIN)/python benchmarks/augment.py
	$(BIN)/python benchmarks/nca.py

clean: ## remove the environment and all caches
	rm -rf .venv build dist docs/_build docs/reference .pytest_cache .mypy_cache .ruff_cache src/*.egg-info

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml | .venv/bin/python
	$(BIN)/pip install -e .
	@touch $@

.venv/installed-all: .venv/installed-dev
	$(BIN)/pip install -e ".[dev,docs,ray,onnx]"
	@touch $@

.venv/installed-docs: pyproject.toml | .venv/bin/python
	$(BIN)/pip install -e ".[docs]"
	@touch $@ .venv/installed

# torchattacks pins an old `requests` that nothing of its attacks needs, which pyproject.toml cannot express.
.venv/installed-dev: pyproject.toml | .venv/bin/python
	$(BIN)/pip install -e ".[dev]"
	$(BIN)/pip install --no-deps torchattacks
	@touch $@ .venv/installed
