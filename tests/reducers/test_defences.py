"""Defences against NumPy, at what they tolerate and past it, and in cohorts that are too small."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from atoll import rng, tree
from atoll.core import AdversaryView, Attack, Info, Reducer, Stack, Update
from atoll.errors import ConfigError
from atoll.reducers import REDUCERS, Attacked, Mean, Median
from tests.support import defence_oracles as oracles

KEY = rng.key("defend")
D = 12


def rows(n: int, seed: str = "honest") -> Tensor:
    """Honest updates: alike, with lengths and directions of their own."""
    return rng.normal(rng.key(seed), (D,)) + 0.5 * rng.normal(rng.key(seed, "noise"), (n, D))


def stacked(x: Tensor, ids: Tensor | None = None) -> Stack:
    """Two tensors of different shapes, whose columns are those of x."""
    n = len(x)
    value = {"delta": {"w": x[:, :8].reshape(n, 2, 4), "b": x[:, 8:].clone()}}
    ids = torch.arange(n) if ids is None else ids
    return Stack(Update(value, torch.arange(1.0, n + 1)), Info(ids, torch.ones(n), torch.ones(n), torch.zeros(n)))


def flat(value: Any) -> Tensor:
    return torch.cat([value["delta"]["w"].flatten(), value["delta"]["b"].flatten()])


def state_of(reducer: Reducer[Any], root: Tensor | None = None) -> Any:
    state = reducer.init(tree.rows(stacked(rows(1)).updates.value, 0))
    if reducer.needs_root():
        state = {**state, "root": tree.rows(stacked(rows(1) if root is None else root[None]).updates.value, 0)}
    return state


def defended(reducer: Reducer[Any], x: Tensor, state: Any = None, ids: Tensor | None = None) -> Tensor:
    total, _, _ = reducer.finish(stacked(x, ids), state_of(reducer) if state is None else state, KEY)
    return flat(total.mean())


@dataclass(frozen=True)
class Case:
    """A defence with options, and the same by hand."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    of: dict[str, Any] | None = None  # what the oracle is told; None: the same
    n: tuple[int, ...] = (7, 8, 11)

    def build(self) -> Reducer[Any]:
        reducer: Reducer[Any] = REDUCERS[self.name](**self.options)
        return reducer


ROOT = rows(1, "root")[0]
ZENO = {"byzantine": 2, "lr": 0.7, "rho": 0.3}
CASES = [
    Case("median"),
    Case("trimmed_mean", {"share": 0.2}),
    Case("meamed", {"byzantine": 2}),
    Case("krum", {"byzantine": 2}),
    Case("multi_krum", {"byzantine": 2}),
    Case("multi_krum", {"byzantine": 2, "keep": 3}),
    Case("bulyan", {"byzantine": 1}),
    Case("bulyan", {"byzantine": 2}, n=(11, 14)),
    Case("geometric_median", {"steps": 3}),
    Case("geometric_median", {"steps": 50}),
    Case("mda", {"byzantine": 3}),
    Case("caf", {"byzantine": 2}),
    Case("dnc", {"byzantine": 2, "columns": 100}, {"byzantine": 2}),
    Case("norm_clipping", {"max_norm": 2.5}),
    Case("centred_clipping", {"radius": 1.5, "steps": 3}),
    Case("clipped_clustering"),
    Case("robust_lr", {"threshold": 0.6}),
    Case("three_sigma", {"sigmas": 1.0}),
    Case("residual_reweighting", {"confidence": 2.0, "threshold": 0.1}),
    Case("foolsgold", {"population": 40}, {}),
    Case("fltrust", {}, {"root": ROOT.double().numpy()}),
    Case("zeno", ZENO, {"root": ROOT.double().numpy(), **ZENO}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{len(case.options)}")
def test_a_defence_is_what_its_paper_says(case: Case) -> None:
    for n in case.n:
        x = rows(n, f"{case.name} {n}")
        reducer = case.build()
        told = (
            {"history": x.double().numpy()}
            if case.name == "foolsgold"
            else case.options
            if case.of is None
            else case.of
        )
        wanted = getattr(oracles, case.name)(x.double().numpy(), **told)
        found = defended(reducer, x, state_of(reducer, ROOT))
        assert found.numpy() == pytest.approx(wanted, rel=2e-4, abs=2e-5), n


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{len(case.options)}")
def test_the_order_of_clients_does_not_matter_even_where_some_are_equal(case: Case) -> None:
    x, order = rows(11), torch.tensor([7, 3, 0, 10, 5, 1, 9, 2, 8, 6, 4])
    x[4:7] = x[1]
    reducer, ids = case.build(), torch.arange(11) + 20
    ours, theirs = (defended(reducer, a, state_of(reducer, ROOT), b) for a, b in ((x, ids), (x[order], ids[order])))
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_the_geometric_median_is_where_the_sum_of_distances_is_smallest() -> None:
    x = rows(9)
    wanted = oracles.true_geometric_median(x.double().numpy())
    assert defended(REDUCERS["geometric_median"](steps=300), x).numpy() == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize(("wrapper", "byzantine"), [("nnm", 2), ("nnm", 3), ("arc", 2), ("arc", 3)])
def test_a_wrapper_hands_on_what_its_paper_says(wrapper: str, byzantine: int) -> None:
    x = rows(9)
    handed = getattr(oracles, wrapper)(x.double().numpy(), byzantine)
    for inner, then in ((Median(), oracles.median), (Mean(), lambda y: y.mean(0))):
        found = defended(REDUCERS[wrapper](byzantine=byzantine, inner=inner), x)
        assert found.numpy() == pytest.approx(then(handed), rel=1e-5, abs=1e-6)


def test_buckets_are_means_of_so_many_whatever_their_order() -> None:
    x = rows(9)
    bucketing = REDUCERS["bucketing"](size=2, inner=Median())
    _, _, said = bucketing.finish(stacked(x), {}, KEY)
    of = said["buckets"]["bucket"].numpy()
    assert sorted(np.bincount(of).tolist()) == [1, 2, 2, 2, 2]
    by_hand = np.median([x[torch.from_numpy(of == k)].numpy().mean(0) for k in range(5)], axis=0)
    assert defended(bucketing, x).numpy() == pytest.approx(by_hand, abs=1e-6)
    other = bucketing.finish(stacked(x), {}, rng.key("another round"))[2]["buckets"]["bucket"]
    assert not torch.equal(other, said["buckets"]["bucket"])


def test_buckets_of_one_are_the_inner_reducer() -> None:
    x = rows(8)
    assert torch.allclose(defended(REDUCERS["bucketing"](size=1, inner=Median()), x), defended(Median(), x), atol=1e-6)


# ---------------------------------------------------------------------------------------------------- state of rounds


def test_centred_clipping_starts_from_the_last_aggregate() -> None:
    reducer, first, second = REDUCERS["centred_clipping"](radius=0.7, steps=2), rows(6, "one"), rows(6, "two")
    _, state, _ = reducer.finish(stacked(first), state_of(reducer), KEY)
    centre = oracles.centred_clipping(first.double().numpy(), 0.7, 2)
    assert flat(state["centre"]).numpy() == pytest.approx(centre, rel=1e-4, abs=1e-5)
    wanted = oracles.centred_clipping(second.double().numpy(), 0.7, 2, centre)
    assert defended(reducer, second, state).numpy() == pytest.approx(wanted, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("steps", [1, 4])
def test_centred_clipping_keeps_its_bound_where_updates_are_long_and_near_to_the_last_one(steps: int) -> None:
    centre = 3e4 * rng.normal(rng.key("far from zero"), (D,))
    x = centre + 0.5 * rng.normal(rng.key("near"), (9, D))
    x[0] = centre + 8.0
    reducer = REDUCERS["centred_clipping"](radius=0.7, steps=steps)
    state = {"centre": tree.rows(stacked(centre[None]).updates.value, 0)}
    found = defended(reducer, x, state)
    wanted = oracles.centred_clipping(x.double().numpy(), 0.7, steps, centre.double().numpy())
    assert np.abs(found.numpy() - wanted).max() < 0.02  # what float32 holds of numbers like these
    assert float((found - centre).norm()) <= 0.7 * steps + 0.05


def test_foolsgold_remembers_every_client_by_its_id() -> None:
    reducer, x, y = REDUCERS["foolsgold"](population=30), rows(6, "one"), rows(6, "two")
    ids, later = torch.tensor([3, 9, 1, 20, 25, 7]), torch.tensor([9, 3, 1, 2, 25, 7])
    _, state, _ = reducer.finish(stacked(x, ids), state_of(reducer), KEY)
    before = {int(k): x[i] for i, k in enumerate(ids)}
    history = torch.stack([y[i] + before.get(int(k), torch.zeros(D)) for i, k in enumerate(later)]).double().numpy()
    wanted = oracles.foolsgold(y.double().numpy(), history)
    assert defended(reducer, y, state, later).numpy() == pytest.approx(wanted, rel=1e-3, abs=1e-4)


def test_foolsgold_may_look_at_one_layer_only() -> None:
    x = rows(6)
    x[:2, 8:] = 1.0  # two are alike in the last layer, and nowhere else
    x[:2, :8] = 3 * rng.normal(rng.key("apart"), (2, 8))
    _, _, all_of_it = REDUCERS["foolsgold"](population=6).finish(
        stacked(x), state_of(REDUCERS["foolsgold"](population=6)), KEY
    )
    layer = REDUCERS["foolsgold"](population=6, layers=["delta/b"])
    _, _, last = layer.finish(stacked(x), state_of(layer), KEY)
    assert float(last["scores"][:2].sum()) == 0.0
    assert float(all_of_it["scores"][:2].sum()) > 0.5


def test_clipped_clustering_clips_to_the_median_of_all_rounds() -> None:
    reducer, x = REDUCERS["clipped_clustering"](history=4), rows(5)
    _, state, said = reducer.finish(stacked(x), state_of(reducer), KEY)
    lengths = np.linalg.norm(x.numpy(), axis=1)
    assert float(said["bound"]) == pytest.approx(np.median(lengths[-4:]), rel=1e-5)
    _, _, later = reducer.finish(stacked(10 * x[:2]), state, KEY)
    assert float(later["bound"]) == pytest.approx(np.median([*lengths[-2:], *(10 * lengths[:2])]), rel=1e-5)


def test_sign_guard_leaves_out_lengths_and_signs_that_stand_out() -> None:
    x = rows(12)
    x[0] *= 50  # too long
    x[1] *= 0.001  # too short
    x[2] = x[2].abs()  # all of one sign
    x[3] = -x[2]
    _, _, said = REDUCERS["sign_guard"]().finish(stacked(x), {}, KEY)
    chosen = said["chosen"].tolist()
    assert not {0, 1} & set(chosen)
    assert len({2, 3} & set(chosen)) == 0
    assert len(chosen) >= 6
    lengths = np.linalg.norm(x.numpy(), axis=1)
    by_hand = oracles.norm_clipping(x[chosen].double().numpy(), float(np.median(lengths)))
    assert defended(REDUCERS["sign_guard"](), x).numpy() == pytest.approx(by_hand, rel=1e-4, abs=1e-5)


# ------------------------------------------------------------------------------------------- at the limit and past it

FAR = 1e5


def attacked(n: int, liars: int, how: str) -> Tensor:
    """Honest updates, of which the first so many were replaced: far away, in a direction in which nobody else is."""
    x = rows(n)
    x[:, D - 1] = 0.0
    away = torch.zeros(D)
    away[D - 1] = FAR
    if how == "together":
        x[:liars] = away
    elif how == "apart":
        x[:liars] = away * torch.linspace(1.0, 2.0, liars)[:, None] if liars else x[:0]
    elif how == "decoy" and liars > 1:  # one at the mean of all, which the others have moved
        x[: liars - 1] = away
        x[liars - 1] = x.sum(0) / n
    return x


def moved(reducer: Reducer[Any], x: Tensor, liars: int) -> float:
    """How far the result is from the honest mean."""
    honest = x[liars:].mean(0)
    return float((defended(reducer, x, state_of(reducer, honest)) - honest).norm())


LIMITS = [
    ("median", {}),
    ("trimmed_mean", {"share": 0.2}),
    ("meamed", {"byzantine": 3}),
    ("krum", {"byzantine": 3}),
    ("multi_krum", {"byzantine": 3}),
    ("multi_krum", {"byzantine": 3, "keep": 2}),
    ("bulyan", {"byzantine": 2}),
    ("geometric_median", {"steps": 500}),
    ("mda", {"byzantine": 3}),
    ("caf", {"byzantine": 3}),
    ("dnc", {"byzantine": 3}),
    ("dnc", {"byzantine": 2, "filtering": 1.5}),
    ("clipped_clustering", {}),
    ("sign_guard", {}),
    ("three_sigma", {"sigmas": 1.5}),
    ("residual_reweighting", {}),
    ("zeno", {"byzantine": 8}),
    ("nnm", {"byzantine": 3, "inner": Median()}),
    ("nnm", {"byzantine": 3, "inner": REDUCERS["krum"](byzantine=3)}),
    ("arc", {"byzantine": 3, "inner": Mean()}),
    ("bucketing", {"size": 2, "inner": Median()}),
]


@pytest.mark.parametrize("how", ["together", "apart", "decoy"])
@pytest.mark.parametrize(("name", "options"), LIMITS)
def test_as_many_as_it_tolerates_cannot_move_it(name: str, options: dict[str, Any], how: str) -> None:
    for n in (11, 12):
        reducer: Reducer[Any] = REDUCERS[name](**options)
        liars = reducer.tolerates(n)
        assert liars > 0
        for m in range(liars + 1):
            assert moved(reducer, attacked(n, m, how), m) < 20, (n, m)


@pytest.mark.parametrize(("name", "options"), LIMITS)
def test_as_many_as_break_it_do(name: str, options: dict[str, Any]) -> None:
    for n in (11, 12):
        reducer: Reducer[Any] = REDUCERS[name](**options)
        liars = reducer.breaks_at(n)
        assert liars is not None
        assert liars > reducer.tolerates(n)
        hows = ("together", "apart", "decoy")
        assert max(moved(reducer, attacked(n, liars, how), liars) for how in hows) > FAR / 200, n


@pytest.mark.parametrize(("name", "options"), LIMITS)
def test_numbers_whose_squares_are_no_floats_do_not_blind_it(name: str, options: dict[str, Any]) -> None:
    reducer: Reducer[Any] = REDUCERS[name](**options)
    x = attacked(12, 1, "together")
    x[0] *= 1e25
    assert moved(reducer, x, 1) < 20


@dataclass(frozen=True)
class NoNumber(Attack):
    """Sends what is no number, in one place of its update only."""

    value: float = float("inf")

    def craft(self, seen: AdversaryView, state: Any, key: Tensor) -> tuple[Tensor, Any]:
        rows = seen.own.clone()
        rows[:, D // 2] = self.value
        return rows, state


BOUNDED = [("norm_clipping", {"max_norm": 2.0}), ("centred_clipping", {"radius": 2.0}), ("fltrust", {})]
TRICKED = [*LIMITS, *BOUNDED, ("robust_lr", {}), ("foolsgold", {"population": 12}), ("mean", {})]


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize(("name", "options"), TRICKED)
def test_what_is_no_number_is_left_out_by_every_server(name: str, options: dict[str, Any], value: float) -> None:
    reducer: Reducer[Any] = REDUCERS[name](**options)
    x = rows(12)
    liars = max(1, reducer.tolerates(12))
    attacked_one = Attacked(reducer, NoNumber(value=value), torch.arange(12) < liars)
    state = attacked_one.init(tree.rows(stacked(x).updates.value, 0))
    if reducer.needs_root():
        state = {**state, "root": tree.rows(stacked(x[liars:].mean(0)[None]).updates.value, 0)}
    total, _, said = attacked_one.finish(stacked(x), state, KEY)
    found, honest = flat(total.mean()), x[liars:]
    assert found.isfinite().all()
    assert float((found - honest.mean(0)).norm()) < 20
    assert said["attack"]["not_finite"].tolist() == list(range(liars))


def test_one_liar_that_is_like_nobody_breaks_foolsgold_and_many_that_are_alike_do_not() -> None:
    reducer = REDUCERS["foolsgold"](population=12)
    assert reducer.breaks_at(12) == 1
    x = torch.diag(torch.ones(D)) + 0.3  # honest clients that differ
    lone = x.clone()
    lone[0] = FAR * torch.linspace(-1, 1, D)
    assert moved(reducer, lone, 1) > FAR / 50
    sybils = x.clone()
    sybils[:7] = FAR * torch.linspace(-1, 1, D)
    assert moved(reducer, sybils, 7) < 5


def test_one_unbounded_liar_breaks_the_robust_learning_rate_and_clipping_before_it_does_not_let_it() -> None:
    reducer = REDUCERS["robust_lr"]()
    assert reducer.breaks_at(12) == 1
    assert moved(reducer, attacked(12, 1, "together"), 1) > FAR / 50
    clipped = REDUCERS["arc"](byzantine=3, inner=reducer)
    assert moved(clipped, attacked(12, 1, "together"), 1) < 20


@pytest.mark.parametrize("liars", [1, 6, 12])
def test_bounded_defences_move_by_what_they_say_and_no_further(liars: int) -> None:
    x = attacked(12, liars, "together")
    for name, options, most in (
        ("norm_clipping", {"max_norm": 2.0}, 2.0),
        ("centred_clipping", {"radius": 2.0, "steps": 1}, 2.0),
        ("centred_clipping", {"radius": 2.0, "steps": 3}, 6.0),
    ):
        reducer: Reducer[Any] = REDUCERS[name](**options)
        assert reducer.breaks_at(12) is None
        pull = float(defended(reducer, x)[-1])  # only liars point there
        assert pull <= most * liars / 12 + 1e-4
        assert pull >= (most * liars / 12) * (0.9 if most == 2.0 else 0.3)  # honest clients pull back
    root = rows(1)[0]
    trusted = REDUCERS["fltrust"]()
    assert trusted.breaks_at(12) is None
    assert float(defended(trusted, x, state_of(trusted, root)).norm()) <= float(root.norm()) * (1 + 1e-5)


def test_no_client_of_ten_is_three_deviations_away() -> None:
    reducer = REDUCERS["three_sigma"]()
    assert [reducer.tolerates(n) for n in (5, 10, 11, 20)] == [0, 0, 1, 1]
    assert moved(reducer, attacked(10, 1, "together"), 1) > FAR / 50
    assert moved(reducer, attacked(11, 1, "together"), 1) < 20


# ----------------------------------------------------------------------------------------------------- small cohorts

OPTIONS: dict[str, dict[str, Any]] = {case.name: case.options for case in CASES} | {
    "nnm": {"byzantine": 2, "inner": Median()},
    "arc": {"byzantine": 2, "inner": Mean()},
    "bucketing": {"inner": Median()},
    "sign_guard": {},
    "norm_clipping": {"max_norm": 100.0},
    "centred_clipping": {"radius": 100.0},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_one_client_is_its_own_aggregate_and_nobody_weighs_nothing(name: str) -> None:
    reducer: Reducer[Any] = REDUCERS[name](**OPTIONS[name])
    x = rows(1)
    assert torch.allclose(defended(reducer, x, state_of(reducer, x[0])), x[0], atol=1e-5)
    state = state_of(reducer)
    nobody, kept, _ = reducer.finish(reducer.zero(tree.rows(stacked(x).updates.value, 0)), state, KEY)
    assert (float(nobody.weight), float(nobody.count)) == (0.0, 0.0)
    assert tree.digest(kept) == tree.digest(state)


@pytest.mark.parametrize("name", OPTIONS)
def test_two_to_four_clients_give_a_number_whatever_was_asked_for(name: str) -> None:
    reducer: Reducer[Any] = REDUCERS[name](**OPTIONS[name])
    for n in (2, 3, 4):
        total, _, said = reducer.finish(stacked(rows(n)), state_of(reducer), KEY)
        assert bool(flat(total.mean()).isfinite().all())
        assert float(total.count) == n
        assert 0 <= reducer.tolerates(n) < n
        assert all(torch.is_tensor(x) for x in tree.leaves(said))


@pytest.mark.parametrize(
    ("name", "f", "n", "words"),
    [
        ("krum", 3, 8, r"3 of 8 clients are too many: Krum needs 2 byzantine \+ 2 < n\. Use byzantine = 2 or less"),
        ("multi_krum", 1, 4, "Use reducer = 'median', or a larger cohort"),
        ("bulyan", 2, 10, r"Bulyan needs 4 byzantine \+ 3 <= n\. Use byzantine = 1 or less"),
        ("meamed", 5, 10, "Use byzantine = 4 or less"),
        ("mda", 5, 10, "Use byzantine = 4 or less"),
        ("caf", 5, 10, "Use byzantine = 4 or less"),
        ("dnc", 5, 10, "Use byzantine = 4 or less"),
        ("zeno", 10, 10, "Use byzantine = 9 or less"),
    ],
)
def test_too_many_liars_for_a_cohort_are_refused_with_advice(name: str, f: int, n: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        REDUCERS[name](byzantine=f).check_cohort(n)
    REDUCERS[name](byzantine=max(0, REDUCERS[name](byzantine=f).most(n))).check_cohort(n)


@pytest.mark.parametrize(("name", "n"), [("krum", 1), ("krum", 2), ("multi_krum", 2), ("bulyan", 2)])
def test_cohorts_that_are_too_small_for_no_liar_at_all_are_refused(name: str, n: int) -> None:
    with pytest.raises(ConfigError, match="Use reducer = 'median', or a larger cohort"):
        REDUCERS[name](byzantine=0).check_cohort(n)
    REDUCERS[name](byzantine=0).check_cohort(3)


def test_a_wrapper_refuses_what_its_inner_reducer_refuses() -> None:
    krum = REDUCERS["krum"](byzantine=3)
    for wrapper in (REDUCERS["nnm"](byzantine=1, inner=krum), REDUCERS["bucketing"](size=2, inner=krum)):
        with pytest.raises(ConfigError, match=r"reducer\.inner\.byzantine: 3 of"):
            wrapper.check_cohort(8)


@pytest.mark.parametrize("name", [n for n in OPTIONS if n != "robust_lr"])
def test_diagnostics_say_whom_it_believed(name: str) -> None:
    reducer: Reducer[Any] = REDUCERS[name](**OPTIONS[name])
    x, ids = rows(9), torch.tensor([4, 8, 2, 30, 7, 5, 1, 12, 11])
    _, _, said = reducer.finish(stacked(x, ids), state_of(reducer), KEY)
    if name in ("median", "trimmed_mean", "meamed", "bucketing", "arc"):
        return  # every coordinate has its own; wrappers say what they did and what the inner one says
    if "clients" in said:
        assert said["clients"].tolist() == sorted(ids.tolist())
    if "weights" in said and name not in (
        "norm_clipping",
        "centred_clipping",
        "fltrust",
        "sign_guard",
        "clipped_clustering",
    ):
        assert float(said["weights"].sum()) == pytest.approx(1.0, abs=1e-5)
    if "chosen" in said and "weights" in said:
        assert said["chosen"].tolist() == said["clients"][said["weights"] > 0].tolist()
