"""benchmarks/growth.py: its fits find what was put in, its picture is drawn from its results, and a leak is seen."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.paths import ROOT

ROOMS = ("growth_fit", "growth")
SIZES = [10, 30, 100, 300, 1000, 3000, 10_000]


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """The benchmark's modules, which live beside each other and not in a package."""
    before = list(sys.path)
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in ROOMS})
    finally:
        sys.path[:] = before
        for name in ROOMS:
            sys.modules.pop(name, None)


@pytest.mark.parametrize("exponent", [0.7, 1.0, 1.5])
@pytest.mark.parametrize("fixed", [0.0, 2e-3])
def test_a_fit_finds_the_fixed_cost_and_the_exponent_that_were_put_in(
    bench: Any, exponent: float, fixed: float
) -> None:
    found = bench.growth_fit.fit(SIZES, [fixed + 4e-6 * n**exponent for n in SIZES])
    assert found["exponent"] == pytest.approx(exponent, abs=0.006)
    assert found["fixed"] == pytest.approx(fixed, abs=1e-6)
    assert found["each"] == pytest.approx(4e-6, rel=0.01)
    assert found["off"] < 0.01


def test_without_a_fixed_cost_the_last_slope_is_the_exponent(bench: Any) -> None:
    assert bench.growth_fit.fit(SIZES, [n**1.2 for n in SIZES])["last"] == pytest.approx(1.2)


def test_a_cost_that_does_not_grow_is_called_flat(bench: Any) -> None:
    found = bench.growth_fit.fit(SIZES, [2.0, 2.1, 1.9, 2.0, 2.05, 1.95, 2.1])
    assert (found["each"], found["exponent"]) == (0.0, 0.0)
    assert found["fixed"] == pytest.approx(2.0, rel=0.03)
    assert "flat" in bench.growth_fit.words("population", found)


def test_a_bend_stands_in_the_fit_as_a_point_that_is_off(bench: Any) -> None:
    bent = [n * (4.0 if n > 1000 else 1.0) for n in SIZES]
    assert bench.growth_fit.fit(SIZES, bent)["off"] > 0.15


def test_the_slope_of_memory_is_that_of_the_second_half_and_no_jump_moves_it(bench: Any) -> None:
    rounds = np.arange(50, 5001, 50)
    warm = 300e6 + 40e6 * np.minimum(rounds / 2400, 1)  # grows for nearly half of them, then stays
    assert bench.growth_fit.bytes_per_round(rounds, warm) == 0.0
    assert bench.growth_fit.bytes_per_round(rounds, warm + 4096 * (rounds == 4000)) == 0.0
    assert bench.growth_fit.bytes_per_round(rounds, warm + 700 * rounds) == pytest.approx(700)


@pytest.mark.slow
def test_the_picture_is_drawn_from_the_results_and_again_the_same(bench: Any, tmp_path: Path) -> None:
    held = json.loads((ROOT / "benchmarks" / "results" / "growth.json").read_text())
    for name in ("a.svg", "b.svg"):
        bench.growth_fit.draw(held, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    text = (tmp_path / "a.svg").read_text()
    assert all(words in text for words in bench.growth_fit.UNITS.values())
    assert "bytes a round" in text


def test_results_hold_what_the_fit_says_of_them(bench: Any) -> None:
    held = json.loads((ROOT / "benchmarks" / "results" / "growth.json").read_text())
    for name in bench.growth_fit.UNITS:
        assert bench.growth_fit.fit(held[name]["sizes"], held[name]["processor_s"]) == pytest.approx(held[name]["fit"])
    slope = bench.growth_fit.bytes_per_round(held["rounds"]["at"], np.array(held["rounds"]["resident_mb"]) * 1e6)
    assert slope == pytest.approx(held["rounds"]["bytes_per_round"], abs=40)


# -------------------------------------------------------------------------------------------------- memory by round

LIMIT = (
    6000  # bytes a round: a line of the record, as Python holds it, and the allocator's next megabyte; not two models
)


# In a process of its own: one that has freed much before takes what leaks from that, and does not grow.
LONG_RUN = """
import sys
from pathlib import Path
import torch
from growth import long_run
from growth_fit import bytes_per_round
kept = []
leak = (lambda: kept.append(torch.ones(2 * 610))) if sys.argv[2] == "leaks" else None
run = long_run(1000, 20, Path(sys.argv[1]), leak)
assert leak is None or len(kept) == 1000
print(bytes_per_round(run["at"], run["resident"]))
"""


def bytes_per_round(folder: Path, how: str) -> float:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])
    command = [sys.executable, "-c", LONG_RUN, str(folder), how]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": paths}, check=True)
    return float(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux how much memory is in use")
def test_memory_is_flat_over_a_thousand_rounds_and_a_leak_of_two_models_a_round_is_seen(tmp_path: Path) -> None:
    slopes = [bytes_per_round(tmp_path / f"run {i}", "") for i in range(2)]
    assert min(slopes) < LIMIT  # of one the allocator may take its next megabyte in the middle
    assert bytes_per_round(tmp_path / "leaking", "leaks") > LIMIT


def test_a_million_clients_are_each_trained_once(bench: Any) -> None:
    found = bench.growth.million(quick=True)
    assert {way: r["clients"] for way, r in found.items() if isinstance(r, dict)} == {
        "100 rounds": 10_000,
        "1 round": 10_000,
    }
