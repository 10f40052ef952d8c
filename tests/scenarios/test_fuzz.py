"""Mutated experiments and malformed data files: each is used, or refused in words of ours; nothing else may happen.

The same cases as `benchmarks/soak.py` tries by the ten thousand (docs/reliability.md has its counts).
"""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.mutated_experiments import mutated, tried
from tests.support.mutated_files import samples
from tests.support.paths import ROOT

CASES = 500
SAMPLES = samples()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_mutated_experiment_is_set_up_or_refused(tmp_path: Path) -> None:
    outcomes = set()
    for seed in range(CASES):
        path = tmp_path / "e.toml"
        path.write_text(mutated(random.Random(seed)), "utf-8")
        try:
            outcomes.add(tried(path, tmp_path))
        except Exception as e:
            raise AssertionError(f"seed {seed} ended in {type(e).__name__}:\n{path.read_text('utf-8')}") from e
    assert outcomes == {"ready", "refused"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_malformed_data_file_is_read_or_refused(tmp_path: Path) -> None:
    outcomes = set()
    for seed in range(CASES):
        name = sorted(SAMPLES)[seed % len(SAMPLES)]
        changed = SAMPLES[name].mutated(random.Random(seed))
        try:
            outcomes.add(SAMPLES[name].read(tmp_path / str(seed), changed))
        except Exception as e:
            raise AssertionError(f"{name}, seed {seed} ended in {type(e).__name__}") from e
    assert outcomes == {"read", "refused", "unforeseen"}


@pytest.mark.parametrize("name", SAMPLES)
def test_what_the_fuzzer_spoils_is_well_before(name: str, tmp_path: Path) -> None:
    assert SAMPLES[name].read(tmp_path, {}) == "read"


@pytest.mark.slow
def test_the_fuzz_is_a_command_that_counts() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "soak.py"), "fuzz", "--cases", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()[-2:]
    assert [line.partition(":")[0] for line in lines] == ["experiments", "files"]
    assert all(
        ": 3 cases: " in line and "0 raw errors, 0 of ours called damage, 0 crashes, 0 other faults" in line
        for line in lines
    )
