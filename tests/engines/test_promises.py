"""A round that is played on what an engine promises is the round that waits first."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

import atoll
from atoll import tree
from atoll.algorithms.scaffold import Scaffold
from atoll.data import Population
from atoll.engines import Vector, program
from atoll.engines.vector import tally
from atoll.runs import Run
from atoll.testing.assertions import distance
from atoll.testing.harness import federation
from atoll.testing.problems import Problem, network

PRIVATE = ["equal_weights", {"name": "clip_l2", "max_norm": 0.5}, {"name": "gaussian_noise", "noise_multiplier": 1.0}]
X, Y = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2


PROMISES = patch.object(Vector, "defers", True)  # as on a GPU


@contextmanager
def promising() -> Iterator[None]:
    """Runs are played on promises, as on a GPU."""
    with PROMISES, patch.object(Vector, "_promised", autospec=True, side_effect=Vector._promised) as promised:
        yield
    assert promised.called


LIFTED = program.lifted


def trained(out: Path, x: torch.Tensor = X, **options: Any) -> Run:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
    return atoll.simulate(
        model, (x, Y), (X, Y), clients=list(torch.arange(60).reshape(6, 10)), rounds=5, cohort=4, out=out, device="cpu",
        algorithm={"name": "scaffold", "lr": 0.1}, engine="vector", evaluate={"clients": 0}, **options,
    )  # fmt: skip


def broken(problem: Problem, client: int) -> Problem:
    """One of this client's examples is not a number."""
    x = problem.columns["x"].clone()
    x[problem.partition.of(client)[-1]] = float("nan")
    return replace(problem, columns={**problem.columns, "x": x})


def same(a: Run, b: Run) -> None:
    assert [e["model"] for e in a.history] == [e["model"] for e in b.history]
    assert [e.get("dropped") for e in a.history] == [e.get("dropped") for e in b.history]


@pytest.mark.parametrize("options", [{}, {"transforms": PRIVATE}, {"transforms": PRIVATE, "privacy": {"canaries": 4}}])
def test_playing_on_promises_changes_nothing(tmp_path: Path, options: dict[str, Any]) -> None:
    first = trained(tmp_path / "first", **options)
    with promising():
        same(trained(tmp_path / "last", **options), first)


def test_who_must_be_left_out_is_left_out_of_model_and_memory(tmp_path: Path) -> None:
    wild = X.clone()
    wild[10:20] = 3e38
    first = trained(tmp_path / "first", wild, on_divergence="drop")
    assert any("dropped" in e for e in first.history)
    with promising():
        same(trained(tmp_path / "last", wild, on_divergence="drop"), first)


def test_no_room_for_those_who_are_left_halves_the_stack(tmp_path: Path) -> None:
    wild = X.clone()
    wild[10:20] = 3e38
    first = trained(tmp_path / "first", wild, on_divergence="drop")
    full = [torch.cuda.OutOfMemoryError("full")]

    def lifted(*given: Any) -> Any:
        """Makes a sum, but not the first one of three of the four."""
        if full and len(given[1]["weight"]) == 3:
            raise full.pop()
        return LIFTED(*given)

    with promising(), patch.object(tally, "lifted", lifted):
        last = trained(tmp_path / "last", wild, on_divergence="drop")
    assert not full
    assert "out of memory with 4 clients at a time, so 2" in last.info["engine"]["reason"]
    assert [e.get("dropped") for e in last.history] == [e.get("dropped") for e in first.history]
    for name, value in last.params.items():
        torch.testing.assert_close(value, first.params[name])


def test_the_aggregate_is_promised_before_anybody_looks_and_nothing_is_written_yet() -> None:
    problem = network()
    waits, promises = (federation(problem, Scaffold(problem.task, 0.1, population=6), Vector) for _ in range(2))
    truth = waits.engine.run(waits.request([5, 0, 3]))
    with PROMISES:
        pending = promises.engine.submit(promises.request([5, 0, 3]))
    promised = pending.promised
    assert tree.digest(promised.partial.value) == tree.digest(truth.partial.value)
    assert promised.rows == truth.rows
    assert torch.equal(promised.examples, truth.examples)
    assert not promises.store.touched.any()
    assert pending.result() is promised
    assert torch.equal(promised.loss, truth.loss)
    assert torch.equal(promised.order, truth.order)
    assert tree.digest(promises.rows()) == tree.digest(waits.rows())


def test_a_promise_is_settled_once_whoever_asks_and_however_often() -> None:
    problem = network()
    made = federation(problem, Scaffold(problem.task, 0.1, population=6), Vector)
    with PROMISES:
        pending = made.engine.submit(made.request([5, 0, 3]))
    with patch.object(made.store, "write", wraps=made.store.write) as write:
        assert pending.promised.finite.all()  # asking for a column waits as well
        assert pending.result() is pending.result() is pending.promised
    assert write.call_count == 1


def test_a_promise_that_cannot_be_kept_is_another_answer() -> None:
    problem = broken(network(), 3)
    waits, promises = (federation(problem, Scaffold(problem.task, 0.1, population=6), Vector) for _ in range(2))
    truth = waits.engine.run(waits.request([5, 3, 0]))
    with PROMISES:
        pending = promises.engine.submit(promises.request([5, 3, 0]))
    result = pending.result()
    assert result is not pending.promised
    assert sorted(pending.promised.order.tolist()) == [0, 1, 2]  # of those who are in its aggregate
    assert result.finite.tolist() == pending.promised.finite.tolist() == [True, False, True]
    assert sorted(result.order.tolist()) == [0, 2]
    assert result.rows == truth.rows < pending.promised.rows
    assert tree.digest(result.partial.value) == tree.digest(truth.partial.value)
    assert promises.store.touched.nonzero().flatten().tolist() == [0, 5]
    assert tree.digest(promises.rows()) == tree.digest(waits.rows())


def test_more_clients_than_fit_and_nobody_at_all_are_answered_without_a_promise() -> None:
    problem = network()
    made = federation(problem, Scaffold(problem.task, 0.1, population=6), partial(Vector, chunk=2))
    with PROMISES:
        for ids in ([5, 0, 3], []):
            pending = made.engine.submit(made.request(ids))
            assert pending.result() is pending.promised
            assert made.store.touched.sum() == 3


def test_a_stack_that_does_not_fit_is_halved_before_anything_is_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = network()
    waits, promises = (federation(problem, Scaffold(problem.task, 0.1, population=6), Vector) for _ in range(2))
    truth = waits.engine.run(waits.request([0, 1, 2, 3, 5]))
    train = Vector._train

    def small(self: Vector, lanes: Any, rows: torch.Tensor) -> Any:
        if len(rows) > 2:
            raise torch.cuda.OutOfMemoryError("full")
        return train(self, lanes, rows)

    monkeypatch.setattr(Vector, "_train", small)
    with PROMISES:
        result = promises.engine.submit(promises.request([0, 1, 2, 3, 5])).result()
    assert distance(result.partial.mean(), truth.partial.mean()) < 1e-6
    assert distance(promises.rows(), waits.rows()) < 1e-6
    assert promises.engine.choice()["chunk"] == 2
    assert promises.engine.notes[-2:] == [
        "out of memory with 5 clients at a time, so 3",
        "out of memory with 3 clients at a time, so 2",
    ]


def test_what_was_planned_ahead_is_what_would_have_been_planned() -> None:
    problem = network()
    made = federation(problem, Scaffold(problem.task, 0.1, population=6), Vector)
    request = made.request([4, 1, 3], client_state="read")
    truth = made.engine.run(request)
    with PROMISES:
        made.engine.prepare(request.ids, request.key, request.order)
        with patch.object(Population, "cohort", side_effect=AssertionError("planned twice")):
            again = made.engine.submit(request).result()
    assert tree.digest(again.partial.value) == tree.digest(truth.partial.value)
    assert torch.equal(again.loss, truth.loss)
