"""A million clients: what a round costs follows from its cohort. Counted in bytes and elements, never in seconds."""

import gc
import json
import os
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from atoll import rng
from atoll.data import Dataset, Partition
from atoll.data.availability import Available
from atoll.data.sampling import Cyclic, CyclicPoisson, Fixed, FixedWithReplacement, Fraction, Poisson
from atoll.data.sources.synthetic import synthetic
from atoll.errors import PartitionError
from atoll.experiment import Experiment, Setup, assemble
from atoll.records import RunFolder
from atoll.rng import host
from atoll.runs import RunLoop
from tests.support.marks import slow_but

MANY, FEW, COHORT, ROWS = 1_000_000, 10_000, 20, 500
SAMPLERS = {
    "fixed": lambda n: Fixed(COHORT),
    "fixed_with_replacement": lambda n: FixedWithReplacement(COHORT),
    "fraction": lambda n: Fraction(COHORT / n),
    "poisson": lambda n: Poisson(size=float(COHORT)),
    "cyclic": lambda n: Cyclic(COHORT, 5),
    "cyclic_poisson": lambda n: CyclicPoisson(float(COHORT), 5),
    "available": lambda n: Available(torch.arange(2 * n).reshape(2, n) % 3 > 0, COHORT),
}


def partition(clients: int) -> Partition:
    rows = torch.arange(clients)[:, None] * 7 + torch.arange(4) * 3
    return Partition(torch.arange(clients + 1) * 4, rows.remainder_(ROWS).reshape(-1))


def setup(clients: int, algorithm: str = "fedavg", **changes: Any) -> Setup:
    torch.manual_seed(0)
    data = torch.randn(ROWS, 5), torch.randint(0, 3, (ROWS,))
    given = {
        "rounds": 1000,
        "data": {"name": "atoll.runs.python_inputs:arrays", "digest": ""},
        "cohort": {"name": "fixed", "size": COHORT},
        "local": {"batch": 4},
        "algorithm": {"name": algorithm, "lr": 0.1},
        "engine": {"name": "loop"},
        "evaluate": {"clients": 3},
        **changes,
    }
    return assemble(Experiment.parse(given), Dataset.from_arrays(*data), partition(clients), nn.Linear(5, 3), "cpu")


def run_loop(made: Setup, folder: Path) -> RunLoop:
    files = RunFolder(folder)
    files.create(0)
    return RunLoop(made, files)


class Largest(TorchDispatchMode):
    """The most elements that any operation of torch returned in memory of its own."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in given:
                self.elements = max(self.elements, x.numel())
        return out


def cost(run: RunLoop) -> tuple[int, int]:
    """A round with its evaluation: the peak of what numpy and Python held above the start, and torch's largest."""
    for _ in range(2):  # what is made once is made
        run.next_round()
    gc.collect()
    tracemalloc.start()
    try:
        with Largest() as seen:
            run.next_round()
        return tracemalloc.get_traced_memory()[1], seen.elements
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(SAMPLERS, "fixed", "poisson"))
def test_a_round_of_a_million_makes_no_more_than_a_round_of_ten_thousand(name: str, tmp_path: Path) -> None:
    found = {}
    for clients in (FEW, MANY):
        made = replace(setup(clients), sampler=SAMPLERS[name](clients))
        found[clients] = cost(run_loop(made, tmp_path / str(clients)))
    assert found[MANY][0] < found[FEW][0] + 100_000  # bytes
    assert found[MANY][1] < FEW  # numbers


@pytest.mark.slow
def test_a_round_with_memory_makes_no_more_either(tmp_path: Path) -> None:
    found = {n: cost(run_loop(setup(n, "scaffold"), tmp_path / str(n))) for n in (FEW, MANY)}
    assert found[MANY][0] < found[FEW][0] + 100_000
    assert found[MANY][1] < FEW


def test_the_record_has_the_ids_and_the_history_does_not(tmp_path: Path) -> None:
    run = run_loop(setup(FEW), tmp_path / "run")
    run.next_round()
    (line,) = (tmp_path / "run" / "record.jsonl").read_text().splitlines()
    assert len(json.loads(line)["cohort"]["ids"]) == COHORT
    assert "ids" not in run.plan.history[-1]["cohort"]
    run.state.checkpoint()
    again = run_loop(setup(FEW), tmp_path / "run")
    again.resume()
    assert again.plan.history == run.plan.history


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux how much memory is in use")
def test_memory_is_flat_over_two_hundred_rounds_of_a_million_clients(tmp_path: Path) -> None:
    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    quick = {"evaluate": {"every": 1000, "clients": 0}, "engine": {"name": "vector", "memory_gb": 0.05}}
    run = run_loop(setup(MANY, "scaffold", **quick), tmp_path / "run")
    assert run.place.spills  # 18 numbers each
    for _ in range(20):
        run.next_round()
    before = resident()
    for _ in range(200):
        run.next_round()
    assert resident() - before < 10e6


# ------------------------------------------------------------------------------------------------------------- sampling


def test_a_cohort_of_a_thousand_from_a_million_takes_a_few_thousand_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    words = host.bits_at
    monkeypatch.setattr(host, "bits_at", lambda k, a, b: drawn.append(len(k) * len(a)) or words(k, a, b))
    for sampler in (Fixed(1000), FixedWithReplacement(1000), Fraction(1e-3), Poisson(size=1000.0)):
        drawn.clear()
        ids, _ = sampler.sample(MANY, 3, rng.key(0))
        assert 800 < len(ids) < 1200
        assert sum(drawn) < 2000


def test_different_numbers_are_equally_likely_even_where_words_barely_suffice() -> None:
    """Words have 63 bits: of n = 3/4 of them, a plain remainder would give the first third twice as often."""
    n = 3 << 61
    for draw in (host.distinct, rng.distinct):
        found = np.concatenate([np.asarray(draw(rng.key(i), n, 100)) for i in range(60)])
        assert len(set(found.tolist())) == len(found)
        low = (found < n // 3).mean()
        assert abs(low - 1 / 3) < 5 * (2 / 9 / len(found)) ** 0.5


def test_every_different_cohort_of_the_available_is_as_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 of 10 that can be reached among 30: 90 ordered pairs, by trying and by looking at everybody alike."""
    trace = torch.zeros(1, 30, dtype=torch.bool)
    trace[0, 1::3] = True
    for rare in (64, 1):
        monkeypatch.setattr("atoll.data.availability._RARE", rare)
        sampler, seen = Available(trace, 2), np.zeros((30, 30), int)
        for r in range(4500):
            a, b = sampler.sample(30, r, rng.key(7))[0].tolist()
            seen[a, b] += 1
        there = seen[1::3, 1::3]
        assert seen.sum() == there.sum() == 4500
        assert (there.diagonal() == 0).all()
        off = there[~np.eye(10, dtype=bool)]
        assert ((off - 50) ** 2 / 50).sum() < 89 + 5 * (2 * 89) ** 0.5  # chi squared


def test_available_clients_are_found_when_the_first_tries_were_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = torch.zeros(1, 1000, dtype=torch.bool)
    trace[0, :40] = True
    sampler = Available(trace, 10)
    asked = []
    distinct = host.distinct

    def unlucky(k: torch.Tensor, n: int, size: int) -> Any:
        asked.append(size)
        return distinct(k, n, size if len(asked) > 2 else 1)

    monkeypatch.setattr(host, "distinct", unlucky)
    ids = sampler.sample(1000, 0, rng.key(0))[0]
    assert len(set(ids.tolist())) == 10
    assert int(ids.max()) < 40
    assert asked[0] < asked[1] == asked[2] == 1000  # nobody is left to try


# -------------------------------------------------------------------------------------------------- made once, in parts


def test_a_partition_is_checked_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.data.partition.partition._CLIENTS", 2)
    lists = [[0, 1], [1, 2], [2], [0, 3, 1], [5]]
    assert Partition.from_lists(lists, overlap=True).size == 5
    for client, (row, twice) in {1: (2, [1, 2, 2]), 3: (3, [3, 0, 3]), 4: (5, [5, 5])}.items():
        with pytest.raises(PartitionError, match=f"client {client} holds row {row} twice"):
            Partition.from_lists([*lists[:client], twice, *lists[client + 1 :]], overlap=True)


def test_sizes_of_some_are_the_sizes_of_these() -> None:
    p = Partition.from_lists([[0, 1], [2], [3, 4, 5]])
    assert p.sizes_of(torch.tensor([2, 0])).tolist() == p.sizes[[2, 0]].tolist() == [3, 2]


def test_synthetic_data_do_not_depend_on_how_many_users_are_made_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = synthetic(users=12, largest=40, dimensions=6)
    monkeypatch.setattr(sys.modules["atoll.data.sources.synthetic"], "_NUMBERS", 1)
    assert synthetic(users=12, largest=40, dimensions=6).digest() == whole.digest()
