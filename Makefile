# Every target does its own set-up: a virtual environment in .venv with the pinned dependencies.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BENCH := .venv-bench
BENCH_READY := $(BENCH)/.ready

.PHONY: setup demo test coverage check bench bench-cost bench-advise bench-simulate docs lock clean

setup: $(READY)

# torch first and by its exact version: another package's wider request could bring in another build;
# escnn without what it asks for: the example that uses it needs nothing of that
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Samestep needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/pip install --quiet --no-deps "$$(grep '^escnn==' constraints.txt)"
	touch $@

demo: setup
	$(BIN)/samestep demo

test: setup
	$(BIN)/pytest -n 2 --dist loadfile -m 'not quiet'
	$(BIN)/pytest -m quiet

# apart from the tests: what it counts with slows every line, and some of them measure time
coverage: setup
	$(BIN)/pytest -n 2 --dist loadfile -m 'not quiet' --cov --cov-report=term:skip-covered

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# beside the libraries that people would pick instead; they have an environment of their own
bench: $(BENCH_READY)
	$(BENCH)/bin/python -m benchmarks peers

$(BENCH_READY): benchmarks/peers/requirements.txt pyproject.toml constraints.txt
	test -x $(BENCH)/bin/python || $(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BENCH)/bin/pip install --quiet --constraint constraints.txt --editable . --requirement benchmarks/peers/requirements.txt
	touch $@

# what Samestep costs more than plain PyTorch, part by part
bench-cost: setup
	$(BIN)/python -m benchmarks

# SCALING is a table of public scaling series
SCALING ?= ../shared/data/scaling.csv

bench-advise: setup
	$(BIN)/python -m benchmarks.advise $(SCALING)

bench-simulate: setup
	$(BIN)/python -m benchmarks.simulate $(SCALING)
	$(BIN)/python -m benchmarks.simulate_here

docs: setup
	$(BIN)/mkdocs build --strict

lock: setup
	@echo '# Versions that the tests run with: made by `make lock` from an environment that passed. pyproject.toml allows more.' > constraints.txt
	@$(BIN)/pip freeze --exclude-editable | sed 's/^\(torch==[0-9.]*\).*/\1/' >> constraints.txt

clean:
	rm -rf $(VENV) $(BENCH) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage
