"""The reducer whose clients mean harm, by hand."""

import pytest
import torch

from atoll import rng, tree
from atoll.attacks.model import FreeRider, InnerProduct, RandomUpdate, ScaledUpdate, SignFlip
from atoll.core import Info, Stack, Total, Update
from atoll.reducers import Attacked, Bounds, Mean, Median, ResidueEncoding, TrimmedMean
from atoll.testing import check_reducer
from atoll.tree import Tree

KEY = rng.key("attacked")
MASK = torch.tensor([False, True, False, False, True, False])


def stack() -> Stack:
    w = rng.normal(KEY, (6, 3, 2))
    value = {"delta": {"w": w, "steps": torch.arange(6)}, "buffers": {"mean": w[:, 0]}}
    info = Info(torch.tensor([5, 1, 0, 4, 2, 3]), torch.ones(6), torch.ones(6), torch.zeros(6))
    return Stack(Update(value, torch.arange(1.0, 7.0)), info)


def finished(reducer: Attacked, number: int = 0) -> tuple[Total, Tree, Tree]:
    some = stack()
    state = reducer.init(tree.map(lambda x: x[0], some.updates.value))
    state = {**state, "round": torch.tensor(number)}
    return reducer.finish(reducer.lift(some.updates, some.info, KEY), state, KEY)


def test_without_attackers_it_is_the_reducer_inside() -> None:
    for inner in (Mean(), Median(), TrimmedMean()):
        check_reducer(Attacked(inner, SignFlip(), torch.zeros(40, dtype=torch.bool)))


def test_it_is_a_monoid_also_with_attackers() -> None:
    some = stack()
    reducer = Attacked(Median(), SignFlip(), MASK)
    state = reducer.init(tree.map(lambda x: x[0], some.updates.value))
    whole = reducer.finish(reducer.lift(some.updates, some.info, KEY), state, KEY)[0]
    parts = [
        reducer.lift(
            Update(tree.rows(some.updates.value, s), some.updates.weight[s]), Info(*(x[s] for x in some.info)), KEY
        )
        for s in (slice(2, 6), slice(0, 2))
    ]
    again = reducer.finish(reducer.merge_all(parts, {}), state, KEY)[0]
    assert tree.digest(whole.value) == tree.digest(again.value)


def test_only_attackers_rows_change_and_only_what_they_make_up() -> None:
    total, _, said = finished(Attacked(Mean(), SignFlip(factor=2.0), MASK))
    some = stack()
    factor = torch.where(MASK[some.info.id], -2.0, 1.0)
    share = some.updates.weight / some.updates.weight.sum()
    want = (some.updates.value["delta"]["w"] * (factor * share)[:, None, None]).sum(0)
    assert torch.allclose(total.mean()["delta"]["w"], want, atol=1e-6)
    statistics = (some.updates.value["buffers"]["mean"] * share[:, None]).sum(0)
    assert torch.allclose(total.mean()["buffers"]["mean"], statistics, atol=1e-6)  # as trained
    assert said["attack"]["attackers"].tolist() == [1, 4]


@pytest.mark.parametrize(("bounds", "p"), [(Bounds(l2=0.5), 2), (Bounds(l1=0.5), 1)])
def test_crafted_updates_are_cut_to_the_bounds(bounds: Bounds, p: int) -> None:
    some, one = stack(), Attacked(Mean(), ScaledUpdate(factor=1e4), torch.ones(6, dtype=torch.bool), bounds)
    alone = Stack(Update(tree.rows(some.updates.value, slice(0, 1)), torch.ones(1)), Info(*(x[:1] for x in some.info)))
    sent = one.finish(alone, one.init(tree.map(lambda x: x[0], some.updates.value)), KEY)[0].mean()["delta"]["w"]
    assert float(torch.linalg.vector_norm(sent.flatten(), p)) == pytest.approx(0.5, rel=1e-5)


def test_where_nothing_is_finite_nothing_moves() -> None:
    for inner in (Mean(), Median()):
        total, _, said = finished(Attacked(inner, RandomUpdate(scale=1e40), torch.ones(6, dtype=torch.bool)))
        assert not total.mean()["delta"]["w"].any()
        assert total.mean()["buffers"]["mean"].any(), "statistics stay as trained"
        assert len(said["attack"]["not_finite"]) == 6


def test_before_its_round_it_is_idle_and_says_so() -> None:
    attack = SignFlip(start=3, stop=4)
    plain = Mean().lift(stack().updates, stack().info, KEY).mean()["delta"]["w"]
    for number, active in ((1, False), (2, True), (3, True), (4, False)):
        total, _, said = finished(Attacked(Mean(), attack, MASK), number)
        assert torch.allclose(total.mean()["delta"]["w"], plain, atol=1e-6) != active
        assert bool(len(said["attack"]["attackers"])) == active


def test_what_attackers_keep_is_what_the_model_did() -> None:
    total, state, _ = finished(Attacked(Median(), FreeRider(replay=True), MASK))
    assert torch.allclose(state["attack"]["last"], total.mean()["delta"]["w"].flatten())
    assert float(state["attack"]["rounds"]) == 1


def test_who_knows_the_others_gets_their_rows_and_who_does_not_gets_none() -> None:
    some = stack()
    honest = some.updates.value["delta"]["w"][~MASK[some.info.id]]
    own = some.updates.value["delta"]["w"][MASK[some.info.id]]
    for sees, mean in (("everybody", honest.mean(0)), ("colluders", own.mean(0))):
        total, _, _ = finished(Attacked(Median(), InnerProduct(epsilon=1.0, sees=sees), MASK))  # type: ignore[arg-type]
        rows = torch.cat([honest, -mean.expand(2, 3, 2)]).sort(0).values
        assert torch.allclose(total.mean()["delta"]["w"], (rows[2] + rows[3]) / 2, atol=1e-6)


ENCODING = ResidueEncoding(step=0.25, modulus=256.0, most=20.0)


def test_residues_are_read_and_written_as_the_numbers_they_stand_for() -> None:
    real = torch.tensor([0.0, 0.25, -0.25, 5.0, -5.0, 0.3, -0.3], dtype=torch.float64)
    residues = ENCODING.residues(real)
    assert residues.tolist() == [0, 1, 255, 20, 236, 1, 255]
    assert ENCODING.real(residues).tolist() == [0.0, 0.25, -0.25, 5.0, -5.0, 0.25, -0.25]


def test_what_is_made_up_is_cut_to_the_range_of_one_client() -> None:
    wild = torch.tensor([1e30, -1e30, 5.1, float("inf"), float("nan")])
    assert ENCODING.real(ENCODING.residues(wild)).tolist() == [5.0, -5.0, 5.0, 5.0, 0.0]


def test_a_sum_of_residues_with_liars_is_that_of_their_numbers() -> None:
    whole = torch.tensor([[4.0, -8.0], [12.0, 3.0], [-20.0, 20.0]], dtype=torch.float64)
    info = Info(torch.arange(3), torch.ones(3), torch.ones(3), torch.zeros(3))
    reducer = Attacked(Mean(), SignFlip(factor=1.0), torch.tensor([False, True, True]), encoding=ENCODING)
    lifted = reducer.lift(Update({"w": torch.remainder(whole, 256.0)}, torch.ones(3)), info, KEY)
    total, _, _ = reducer.finish(lifted, reducer.init({"w": whole[0]}), KEY)
    sums = torch.remainder(total.value["w"] + 128, 256.0) - 128
    assert sums.tolist() == [4.0 - 12.0 + 20.0, -8.0 - 3.0 - 20.0]
