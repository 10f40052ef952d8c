"""Everything registered goes through the conformance kit, and the kit refuses what is wrong."""

import doctest
import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from atoll import rng, tree
from atoll.algorithms import ALGORITHMS
from atoll.algorithms.fedavg import FedAvg
from atoll.algorithms.local import delta_update, descend, gradient, move
from atoll.core import (
    Chain,
    ClientStates,
    Cohort,
    Engine,
    Info,
    Pending,
    Reducer,
    Request,
    Spec,
    Total,
    Train,
    Trained,
    Transform,
    Update,
)
from atoll.data.partition import PARTITIONS, Iid, Partition
from atoll.engines import ENGINES, Choice, ClientStore, DeviceData, LocalEngine, Loop, Threads, Vector, make
from atoll.engines.one_by_one import ClientInputs
from atoll.errors import ConformanceError
from atoll.privacy import Event, Gaussian
from atoll.reducers import REDUCERS, Krum, Mean, Median
from atoll.testing import CLAIMS, check_algorithm, check_engine, check_partition, check_reducer, check_transform, engine
from atoll.transforms import TRANSFORMS
from atoll.transforms.clip import ClipL2
from atoll.transforms.compress import Compression, TopK
from atoll.transforms.noise import GaussianNoise
from atoll.transforms.weights import EqualWeights
from atoll.tree import Tree
from tests.support.marks import slow_but

TRANSFORM_OPTIONS: dict[str, dict[str, Any]] = {
    "equal_weights": {},
    "clip_l2": {"max_norm": 0.5},
    "clip_per_layer": {"max_norm": 0.5},
    "clip_layers": {"max_norms": {"a": 0.5, "delta": 0.3, "rest": 0.2}},
    "clip_l1": {"max_norm": 0.5},
    "adaptive_clip": {"initial_max_norm": 0.5},
    "joint_clip": {
        "max_norms": {"delta": 0.5, "delta/b": 0.3, "rest": 2.0},
        "shares": {"delta": 0.5, "delta/b": 0.3, "rest": 0.2},
    },
    "gaussian_noise": {"noise_multiplier": 1.0},
    "laplace_noise": {"noise_multiplier": 1.0},
    "banded_noise": {"noise_multiplier": 1.0, "bands": 3},
    "tree_noise": {"noise_multiplier": 1.0},
    "fixed_point": {"step": 0.01},
    "discrete_gaussian": {"noise_multiplier": 1.0},
    "skellam": {"noise_multiplier": 1.0},
    "secure_sum": {"bits": 16},
    "local_gaussian": {"epsilon": 2.0, "delta": 1e-5},
    "local_laplace": {"epsilon": 2.0},
    "privunit": {"epsilon": 4.0},
    "approximate_local": {"mechanism": "privunit", "epsilon": 4.0},
    "weak_dp": {"max_norm": 0.5},
    "nbafl": {"max_norm": 0.5, "epsilon": 8.0, "delta": 1e-3, "examples": 50, "rounds": 20, "clients": 50},
    "top_k": {"share": 0.3},
    "rand_k": {"share": 0.3},
    "low_rank": {"rank": 1},
    "qsgd": {"levels": 4},
    "uniform_quantise": {"bits": 4},
    "drive": {},
    "half": {},
    "sign": {},
    "ternary": {"share": 0.3},
    "mask_layers": {"send": ["delta/*"]},
    "shared_mask": {"share": 0.3},
    "sketch": {"columns": 7, "rows": 3, "share": 0.3},
    "relevance": {"threshold": 0.3},
    "entropy": {},
}
REDUCER_OPTIONS: dict[str, dict[str, Any]] = {
    "mean": {},
    "client_weights": {"weights": {"1": 2.0, "3": 0.5}, "population": 100},
    "fedgma": {},
    "median": {},
    "trimmed_mean": {"share": 0.2},
    "meamed": {"byzantine": 2},
    "krum": {"byzantine": 2},
    "multi_krum": {"byzantine": 2},
    "bulyan": {"byzantine": 1},
    "geometric_median": {},
    "mda": {"byzantine": 2},
    "caf": {"byzantine": 2},
    "dnc": {"byzantine": 2, "columns": 5},
    "norm_clipping": {"max_norm": 10.0},
    "centred_clipping": {"radius": 10.0, "steps": 2},
    "clipped_clustering": {},
    "sign_guard": {},
    "robust_lr": {},
    "three_sigma": {},
    "residual_reweighting": {},
    "foolsgold": {"population": 100},
    "fltrust": {},
    "zeno": {"byzantine": 2},
    "nnm": {"byzantine": 2, "inner": Krum(2)},
    "arc": {"byzantine": 2, "inner": Mean()},
    "bucketing": {"size": 2, "inner": Median()},
}
PARTITION_OPTIONS: dict[str, dict[str, Any]] = {
    "iid": {"clients": 7},
    "dirichlet": {"clients": 6, "alpha": 0.4},
    "quantity_dirichlet": {"clients": 6, "alpha": 0.4},
    "classes": {"clients": 9, "per_client": 2},
    "shards": {"clients": 7, "per_client": 2},
    "natural": {"by": "user", "minimum": 15},
    "designed": {"clients": 6, "emd": 0.8},
    "power_law": {"clients": 6, "exponent": 1.2},
    "lognormal": {"clients": 6, "sigma": 1.0},
    "poisson": {"mean": 20.0},
    "fixed": {"clients": 6, "points": 30},
    "user_dirichlet": {"clients": 6, "points": 30, "alpha": 0.5},
    "pachinko": {"clients": 6, "points": 30, "coarse": (0, 0, 0, 0, 1, 1, 1, 1)},
    "niid_mixed": {"clients": 8},
    "groups": {"clients": 6, "groups": 2},
    "noise": {"clients": 6, "level": 0.1},
    "fcube": {"clients": 8},
    "compose": {"of": ({"name": "iid", "clients": 6}, {"name": "power_law"}, {"name": "noise", "level": 0.1})},
}
DETERMINISTIC = {"natural"}


class Chosen(Engine):
    """An engine as a run makes it: chosen by name, tried on the first request."""

    name = "chosen"

    def __init__(self, asked: Choice, data: DeviceData, store: ClientStore) -> None:
        self.asked, self.data, self.store = asked, data, store
        self.engine: LocalEngine | None = None
        self.notes = []

    def submit(self, request: Request) -> Pending[Any]:
        if self.engine is None:
            assert isinstance(request, Train)
            measured = nn.Conv2d(1, 1, 1)  # not dense, so that "auto" takes the time
            self.engine = make(self.asked, self.data, self.store, 1 << 30, request, measured)
        return self.engine.submit(request)

    def state(self) -> ClientStates:
        return Loop(self.data, self.store).state()

    def load(self, pieces: Iterable[tuple[Tensor, Tree]]) -> None:
        Loop(self.data, self.store).load(pieces)

    def choice(self) -> dict[str, Any]:
        return {"name": self.asked.name}


def given(options: dict[str, Any], name: str, where: str) -> Any:
    if name not in options:
        pytest.fail(f"{name!r} is registered, but has no entry in {where}: add one, so that the kit can check it.")
    return options[name]


# Needs a model with a generator, which no problem of the kit has: tests/algorithms/test_searched_and_generated.py.
OWN_MODEL = ("fedgan", "fedgkt")
ON_ANY_MODEL = {name: builder for name, builder in ALGORITHMS.items() if name not in OWN_MODEL}


@pytest.mark.parametrize("name", slow_but(ON_ANY_MODEL, "fedavg", "fedadam", "scaffold", "ditto", "fedper"))
def test_every_registered_algorithm_conforms(name: str) -> None:
    assert check_algorithm(ALGORITHMS[name], **given(CLAIMS, name, "CLAIMS (atoll/testing/claims.py)"))


@pytest.mark.slow
def test_scaffold_by_option_one_conforms() -> None:
    assert "reaches the true optimum" in check_algorithm(ALGORITHMS["scaffold"], **CLAIMS["scaffold"], option="I")


@pytest.mark.parametrize("name", TRANSFORMS)
def test_every_registered_transform_conforms(name: str) -> None:
    assert check_transform(TRANSFORMS[name](**given(TRANSFORM_OPTIONS, name, "TRANSFORM_OPTIONS (this file)")))


@pytest.mark.parametrize("name", REDUCERS)
def test_every_registered_reducer_conforms(name: str) -> None:
    assert check_reducer(REDUCERS[name](**given(REDUCER_OPTIONS, name, "REDUCER_OPTIONS (this file)")))


@pytest.mark.parametrize("name", PARTITIONS)
def test_every_registered_partition_conforms(name: str) -> None:
    builder = PARTITIONS[name](**given(PARTITION_OPTIONS, name, "PARTITION_OPTIONS (this file)"))
    assert check_partition(builder, random=name not in DETERMINISTIC)


SETTINGS: dict[str, list[Any]] = {
    "auto": [{}],
    "loop": [{}],
    "vector": [{}, {"chunk": 2, "capture": False}],
    "threads": [{"workers": 2}],
}


@pytest.mark.parametrize("name", slow_but(ENGINES, "loop", "vector"))
def test_every_registered_engine_conforms(name: str) -> None:
    checks = engine.CHECKS
    for options in given(SETTINGS, name, "SETTINGS (this file)"):
        factory = partial(Chosen, ENGINES[name](**options))
        # "auto" is one of the others, after a measurement
        for check in checks if name != "auto" else [engine.drops_what_is_not_finite]:
            assert check(factory)


def test_a_client_drawn_twice_does_the_same_twice_in_different_chunks() -> None:
    assert engine.repeats_a_client(partial(Vector, chunk=1))


def test_no_options_are_kept_for_what_is_gone() -> None:
    for registry, options in (
        (ALGORITHMS, CLAIMS),
        (TRANSFORMS, TRANSFORM_OPTIONS),
        (REDUCERS, REDUCER_OPTIONS),
        (PARTITIONS, PARTITION_OPTIONS),
        (ENGINES, SETTINGS),
    ):
        assert set(options) <= set(registry)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", ".algorithm", ".engine", ".partition", ".reducer", ".transform"])
def test_the_examples_of_the_kit_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"atoll.testing{name}")).failed == 0


# What the kit must refuse: one mistake each.


@dataclass(frozen=True)
class InPlace(FedAvg):
    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        g, carry = gradient(self.task, carry, batch)
        for k, p in carry["params"].items():
            p.sub_(self.lr * g[k])
        return carry


@dataclass(frozen=True)
class GrowingCarry(FedAvg):
    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        return {**super().step(carry, sent, own, batch), "last": batch["mask"]}


@dataclass(frozen=True)
class GrowingServer(FedAvg):
    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        return {**super().apply(server, total, key), "rounds": total.count}


@dataclass(frozen=True)
class ChangingClientState(FedAvg):
    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        return delta_update(carry, sent, info), {"steps": info.steps}


@dataclass(frozen=True)
class PythonNumber(FedAvg):
    def send(self, server: Tree) -> Tree:
        return {**server, "rate": 0.1}


@dataclass(frozen=True)
class OtherNames(FedAvg):
    def start(self, sent: Tree, own: Tree) -> Tree:
        return {"weights": sent["params"]}


@dataclass(frozen=True)
class Unkeyed(FedAvg):
    def start(self, sent: Tree, own: Tree) -> Tree:
        carry = super().start(sent, own)
        return {**carry, "params": tree.map(lambda p: p + 1e-3 * torch.randn_like(p), carry["params"])}


class Counting(FedAvg):
    calls: ClassVar[list[int]] = [0]

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        self.calls[0] += 1
        return move(server, total.mean(), 1.0 + self.calls[0])


@dataclass(frozen=True)
class Branching(FedAvg):
    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        g, new = gradient(self.task, carry, batch)
        return descend(self.optimizer, new, g, self.lr) if float(new["loss"]) > 0 else new


@dataclass(frozen=True)
class KnowsItsEngine(FedAvg):
    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        update = delta_update(carry, sent, info)
        stacked = torch._C._functorch.is_batchedtensor(info.examples)
        return update._replace(value=tree.scale(update.value, 2.0 if stacked else 1.0)), own


@dataclass(frozen=True)
class Uphill(FedAvg):
    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        return move(server, total.mean(), -1.0)


@dataclass(frozen=True)
class Wandering(FedAvg):
    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        new = move(server, total.mean(), 1.0)
        return {**new, "params": tree.map(lambda p: 0.99 * p, new["params"])}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (InPlace, "step leaves what it is given alone"),
        (GrowingCarry, "step keeps the structure of the carry"),
        (GrowingServer, "apply keeps the structure of the server's state"),
        (ChangingClientState, "finish keeps the structure of the client state"),
        (PythonNumber, "send gives only tensors"),
        (OtherNames, "what start gives has params and buffers"),
        (Unkeyed, "start gives the same twice"),
        (Counting, "apply gives the same twice"),
        (Branching, "same stacked as one by one"),
        (KnowsItsEngine, "same stacked as one by one"),
        (Uphill, "learns"),
        (Wandering, "a vanishing lr moves nothing"),
    ],
)
def test_a_wrong_algorithm_is_refused_by_name(wrong: Callable[..., Any], words: str) -> None:
    with pytest.raises(ConformanceError) as refused:
        check_algorithm(wrong)
    assert str(refused.value).startswith(words)
    assert "Usual cause" in str(refused.value)


def test_a_wrong_claim_is_refused_too() -> None:
    with pytest.raises(ConformanceError, match=r"reaches the true optimum: found 0\.09.*expected at most 0\.0001"):
        check_algorithm(FedAvg, exact=True)
    with pytest.raises(ConformanceError, match="claimed not to"):
        check_algorithm(ALGORITHMS["scaffold"], exact=False)
    with pytest.raises(ConformanceError, match="claimed not to be"):
        check_algorithm(FedAvg, alone=False)
    with pytest.raises(ConformanceError, match="one client alone is plain SGD"):
        check_algorithm(ALGORITHMS["reptile"], alone=True)


def test_a_strangers_function_will_do_and_what_it_does_not_claim_is_only_reported() -> None:
    def mine(task: Any, lr: float, mu: float) -> Any:
        return ALGORITHMS["fedprox"](task, lr, mu=mu)

    passed = check_algorithm(mine, mu=0.1)
    assert "learns" in passed
    assert any(p.startswith("reaches the true optimum: 0.09 of the way is left (not demanded)") for p in passed)
    assert any(p.startswith("one client alone is plain SGD: differs by") for p in passed)


def test_options_that_the_builder_does_not_take_are_named() -> None:
    with pytest.raises(ConformanceError, match=r"can be built.*'mu'"):
        check_algorithm(FedAvg, mu=0.1)


class LyingBound(Transform):
    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        return self, replace(spec, l2=1.0)


class PerTensor(LyingBound):
    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        value = tree.map(lambda x: x / x.norm().clamp(min=1.0), update.value)
        return update._replace(value=value), own


class LyingSum(ClipL2):
    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        return self, replace(spec, l1=self.max_norm)  # its length, which says less


class LeavesPart(Transform):
    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        return update._replace(value={**update.value, "extra": torch.ones(())}), own


class LyingWeights(Transform):
    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        return self, replace(spec, equal_weights=True)


class SilentWeights(Transform):
    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        return update._replace(weight=torch.ones_like(update.weight)), own


class UnkeyedNoise(Transform):
    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        return replace(total, value=tree.map(lambda x: x + torch.randn_like(x), total.value)), state


class OneDraw(Transform):
    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        return update._replace(value=tree.map(lambda x: x + rng.normal(key, tuple(x.shape)), update.value)), own


class Forgetful(Compression):
    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        return super().client(update, state, {"residual": tree.zeros_like(update.value)}, key)


class Divides(Transform):
    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        return update._replace(value=tree.scale(update.value, 1.0 / tree.norm(update.value))), own


class Renames(Transform):
    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        return update._replace(value={"delta": update.value["delta"]}), own


class Scales(Transform):
    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        for x in tree.leaves(update.value):
            x.mul_(0.5)
        return update, own


class Asks(Transform):
    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        return (update._replace(value=tree.scale(update.value, 0.5)) if tree.norm(update.value) > 1 else update), own


class KeepsNoPacking(Transform):
    """An offset fills the zeros that a compressor before it leaves out."""

    keyed: ClassVar[bool] = False
    keeps_packing: ClassVar[bool] = True

    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        return update._replace(value=tree.map(lambda x: x + 0.1, update.value)), own


@dataclass(frozen=True)
class HidesNoise(Transform):
    """Around another, whose noise no accountant hears of."""

    inner: Transform

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        inner, spec = self.inner.bind(spec)
        return replace(self, inner=inner), spec

    def init(self, like: Tree) -> tuple[Tree, Tree]:
        return self.inner.init(like)

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        return self.inner.server(total, state, key)


class GivesNoise(HidesNoise):
    def mechanisms(self) -> list[Transform]:
        return self.inner.mechanisms()


class ClaimsNoise(ClipL2):
    def event(self) -> Event:
        return Gaussian(1.0)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (HidesNoise(GaussianNoise(1.0)), "an account hears of its noise"),
        (ClaimsNoise(0.5), "an account hears of its noise"),
        (LyingBound(), "keeps its bound"),
        (PerTensor(), "keeps its bound"),
        (LyingSum(0.5), "keeps its bound"),
        (LeavesPart(), "keeps the structure of the total"),
        (LyingWeights(), "all clients weigh the same"),
        (SilentWeights(), "leaves weights alone"),
        (UnkeyedNoise(), "same key, same total"),
        (OneDraw(), "client: every tensor has its own draw"),
        (Forgetful((TopK(0.3),)), "what is held back is not lost"),
        (KeepsNoPacking(), "keeps_packing, so tensors are only scaled"),
        (Divides(), "finite updates stay finite"),
        (Renames(), "keeps the structure of an update"),
        (Scales(), "leaves what it is given alone"),
        (Asks(), "runs stacked"),
    ],
)
def test_a_wrong_transform_is_refused_by_name(wrong: Transform, words: str) -> None:
    with pytest.raises(ConformanceError) as refused:
        check_transform(wrong)
    assert str(refused.value).startswith(words)


def test_an_account_hears_of_noise_inside_of_other_transforms() -> None:
    assert "an account hears of its noise" in check_transform(GivesNoise(GaussianNoise(1.0)))
    inner = Chain((EqualWeights(), ClipL2(0.5), GivesNoise(GaussianNoise(2.0))))
    bound, _ = Chain((inner,)).bind(Spec())
    assert bound.events() == [Gaussian(2.0)]


def test_a_transform_that_refuses_everything_asks_for_a_spec() -> None:
    with pytest.raises(ConformanceError, match="Give check_transform a spec"):
        check_transform(GaussianNoise(1.0), Spec())


class MeanOfMeans(Mean):
    def lift(self, updates: Update, info: Info, key: Tensor) -> Total:
        total = super().lift(updates, info, key)
        return Total(total.mean(), torch.ones(()), total.count)

    def merge(self, a: Total, b: Total) -> Total:
        return Total(tree.map(lambda x, y: (x + y) / 2, a.value, b.value), a.weight, a.count + b.count)


class Unweighted(Mean):
    def lift(self, updates: Update, info: Info, key: Tensor) -> Total:
        return super().lift(updates._replace(weight=torch.ones_like(updates.weight)), info, key)

    def lift_scaled(self, updates: Update, factors: Tree, info: Info, key: Tensor) -> Total:
        return self.lift(updates.scaled(factors), info, key)


class SumOfAll(Median):
    def finish(self, partial: Any, state: Tree, key: Tensor) -> tuple[Total, Tree, Tree]:
        total, state, said = super().finish(partial, state, key)
        return replace(total, value=tree.map(lambda x: x.sum(0), partial.updates.value)), state, said


class FirstOne(Median):
    def finish(self, partial: Any, state: Tree, key: Tensor) -> tuple[Total, Tree, Tree]:
        total, state, said = super().finish(partial, state, key)
        return (replace(total, value=tree.rows(partial.updates.value, 0)) if len(partial) else total), state, said


class CountsWeight(Mean):
    def finish(self, partial: Total, state: Tree, key: Tensor) -> tuple[Total, Tree, Tree]:
        return replace(partial, count=partial.weight), state, {}


class BeginsWithSomebody(Mean):
    def zero(self, like: Tree) -> Total:
        return Total(tree.map(torch.ones_like, like), torch.ones(()), torch.zeros(()))


class AlwaysWeighsOne(Median):
    def finish(self, partial: Any, state: Tree, key: Tensor) -> tuple[Total, Tree, Tree]:
        total, state, said = super().finish(partial, state, key)
        return replace(total, weight=torch.ones(())), state, said


class LeavesFactorsOut(Mean):
    def lift_scaled(self, updates: Update, factors: Tree, info: Info, key: Tensor) -> Total:
        return self.lift(updates, info, key)


class GrowingReducer(Mean):
    def finish(self, partial: Total, state: Tree, key: Tensor) -> tuple[Total, Tree, Tree]:
        return partial, {**state, "rounds": torch.ones(())}, {}


class SaysANumber(Mean):
    def finish(self, partial: Total, state: Tree, key: Tensor) -> tuple[Total, Tree, Tree]:
        return partial, state, {"clients": float(partial.count)}  # type: ignore[dict-item]


class ByPlace(Median):
    def lift(self, updates: Update, info: Info, key: Tensor) -> Any:
        return super().lift(updates._replace(value=_weighed(updates.value)), info, key)


def _weighed(value: Tree) -> Tree:
    return tree.map(lambda x: x * (1 + torch.arange(len(x)).reshape(-1, *[1] * (x.dim() - 1))), value)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (MeanOfMeans(), "merging is associative"),
        (Unweighted(), "is the weighted mean"),
        (SumOfAll(), "equal updates give that update"),
        (FirstOne(), "merging is commutative"),
        (CountsWeight(), "counts the clients"),
        (BeginsWithSomebody(), "zero is the identity"),
        (AlwaysWeighsOne(), "nobody weighs nothing"),
        (LeavesFactorsOut(), "factors are multiplied in passing"),
        (GrowingReducer(), "the state keeps its structure"),
        (SaysANumber(), "diagnostics are a tree of tensors"),
        (ByPlace(), "merging is associative"),
    ],
)
def test_a_wrong_reducer_is_refused_by_name(wrong: Reducer[Any], words: str) -> None:
    with pytest.raises(ConformanceError) as refused:
        check_reducer(wrong)
    assert str(refused.value).startswith(words)


class FullBatches(DeviceData):
    def plan(self, train: Train) -> Cohort:
        cohort = super().plan(train)
        return replace(cohort, count=torch.full_like(cohort.count, cohort.plan.shape[2]))


def trains_on_padding(data: DeviceData, store: ClientStore) -> Engine:
    return Loop(FullBatches(**vars(data)), store)


class KeepsNans(Loop):
    def train(self, request: Train) -> Pending[Trained]:
        result = super().train(request).result()
        columns = result.columns()._replace(finite=torch.ones_like(result.finite))
        return Pending.done(replace(result, columns=lambda: columns))


class LosesOrder(Vector):
    def train(self, request: Train) -> Pending[Trained]:
        result = super().train(request).result()
        columns = result.columns()._replace(loss=result.loss.flip(0))
        return Pending.done(replace(result, columns=lambda: columns))


class SendsToAll(Loop):
    def train(self, request: Train) -> Pending[Trained]:
        alike = replace(request, sent=tree.rows(request.sent, 0), per_client=False) if request.per_client else request
        return super().train(alike)


class ForgetsMemory(Loop):
    def train(self, request: Train) -> Pending[Trained]:
        return super().train(replace(request, client_state="read"))


class WritesAtOnce(Loop):
    """Which copy of a client that was drawn twice comes first makes a difference."""

    def clients(self, given: ClientInputs) -> Iterator[Tree]:
        given.rows.repeated = False
        return super().clients(given)


class WeighsNobody(Loop):
    """As if an average over nobody were one of somebody's."""

    def train(self, request: Train) -> Pending[Trained]:
        result = super().train(request).result()
        zero = request.program.reducer.zero(request.program.like)
        partial = result.partial if bool(result.finite.any()) else replace(zero, weight=torch.ones(()))
        return Pending.done(replace(result, partial=partial))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (trains_on_padding, "agrees with the loop"),
        (ForgetsMemory, "agrees with the loop"),
        (LosesOrder, "losses are in the order of the cohort"),
        (KeepsNans, "flags clients that are not finite"),
        (SendsToAll, "sends each client its own"),
        (WritesAtOnce, "a client drawn twice does the same twice"),
        (WeighsNobody, "with nobody left the aggregate is the identity"),
    ],
)
def test_a_wrong_engine_is_refused_by_name(wrong: Callable[..., Engine], words: str) -> None:
    with pytest.raises(ConformanceError) as refused:
        check_engine(wrong)
    assert str(refused.value).startswith(words)


def _changed(change: Callable[[Partition, Tensor], Partition]) -> Any:
    def partitioner(labels: Tensor | None, keys: dict[str, Tensor], examples: int, key: Tensor) -> Partition:
        return change(Iid(5)(labels, keys, examples, key), key)

    return partitioner


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p, k: replace(p, indices=torch.cat([p.indices[1:2], p.indices[1:]])), "no row is held twice"),
        (lambda p, k: replace(p, indices=p.indices + 1), "rows exist"),
        (lambda p, k: Partition(p.offsets[:-1], p.indices[: int(p.offsets[-2])], p.provenance, 0), "no row is lost"),
        (lambda p, k: replace(p, offsets=torch.cat([p.offsets, p.offsets[-1:]])), "nobody has nothing"),
        (lambda p, k: Iid(5)(None, {}, 240, rng.key(int(torch.randint(1 << 30, ())))), "same key, same clients"),
        (lambda p, k: Iid(5)(None, {}, 240, rng.key(0)), "another key, other clients"),
    ],
)
def test_a_wrong_partitioner_is_refused_by_name(change: Any, words: str) -> None:
    with pytest.raises(ConformanceError) as refused:
        check_partition(_changed(change))
    assert str(refused.value).startswith(words)


def test_a_partitioner_that_claims_not_to_draw_is_held_to_it() -> None:
    with pytest.raises(ConformanceError, match="draws nothing"):
        check_partition(Iid(5), random=False)


@pytest.mark.slow
def test_threads_with_one_worker_conform() -> None:
    assert engine.agrees_with_the_loop(partial(Threads, workers=1))


def test_a_clip_before_noise_is_what_noise_is_checked_on() -> None:
    bound, spec = ClipL2(0.5).bind(Spec(equal_weights=True))
    assert check_transform(GaussianNoise(0.7), spec)
    assert bound == ClipL2(0.5)
