"""DP-SGD inside a client: gradients against a loop over examples, noise, engines, refusals.

What it costs: test_example_accounting.py. Batches drawn anew: test_batches.py.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import atoll
from atoll import rng, tree
from atoll.algorithms.fedavg import FedAvg
from atoll.algorithms.local import gradient
from atoll.core import Cohort, functional
from atoll.data import Dataset, Partition, Population
from atoll.engines import Loop, Threads, Vector
from atoll.errors import ConfigError
from atoll.experiment import Experiment, Setup, assemble
from atoll.runs import run_together
from atoll.schedules import Schedule
from atoll.tasks import Classification, Regression, Supervised
from atoll.tasks.dp_sgd import PrivateTask
from atoll.testing.harness import federation
from atoll.testing.problems import network
from atoll.tree import Tree
from tests.support.marks import slow

pytestmark = pytest.mark.usefixtures("rough_account")
X = rng.normal(rng.key("x"), (240, 1, 6, 6))
Y = (X[:, 0, 0, 0] + X[:, 0, 1, 1] > 0).long()
LISTS = [list(range(20 * c, 20 * c + 20 - c)) for c in range(12)]
KEY = rng.key("a step")


class GoneError(Exception):
    """What a test stops a run with."""


def mlp(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Dropout(dropout), nn.Tanh(), nn.Linear(8, 2))


def cnn() -> nn.Module:
    torch.manual_seed(0)
    head = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 2))
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), head)


def task_of(module: nn.Module) -> Supervised:
    return Supervised(module, Classification(2), {"x": X[:4], "y": Y[:4], "mask": torch.ones(4)})


def batch_of(rows: Any, mask: list[float], key: Tensor = KEY) -> Tree:
    return {"x": X[rows], "y": Y[rows], "mask": torch.tensor(mask), "key": key}


def both(private: PrivateTask, params: Tree, batch: Tree) -> list[tuple[Tree, Tensor]]:
    """One after the other, and side by side."""
    with torch.no_grad():
        loop = private.gradient(params, {}, batch)
        with functional():
            return [loop, private.gradient(params, {}, batch)]


def close(a: Tree, b: Tree, within: float = 1e-5) -> bool:
    return float(tree.norm(tree.sub(a, b))) <= within * max(1e-3, float(tree.norm(b)))


# The gradient


def by_hand(module: nn.Module, rows: list[int], clip: float) -> dict[str, Tensor]:
    """Backward for one example at a time, its gradient shortened to `clip`, summed: nothing of ours in it."""
    total = {k: torch.zeros_like(p) for k, p in module.named_parameters()}
    for i in rows:
        module.zero_grad()
        nn.functional.cross_entropy(module(X[i : i + 1]), Y[i : i + 1]).backward()
        length = math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in module.parameters() if p.grad is not None))
        for k, p in module.named_parameters():
            assert p.grad is not None
            total[k] += p.grad * min(1.0, clip / length)
    return total


@pytest.mark.parametrize("make", [mlp, cnn])
@pytest.mark.parametrize("clip", [1e-2, 0.7, 1e6])
def test_the_gradient_is_what_a_loop_over_examples_gives(make: Any, clip: float) -> None:
    task = task_of(make())
    private = PrivateTask(task, clip, 0.0, expected=5.0)
    wanted = tree.scale(by_hand(make(), [3, 9, 27], clip), 1 / 5)
    for g, loss in both(private, task.init(KEY)["params"], batch_of([3, 9, 27, 0], [1, 1, 1, 0])):
        assert close(g, wanted)
        each = nn.functional.cross_entropy(make()(X[[3, 9, 27]]), Y[[3, 9, 27]])
        assert float(loss) == pytest.approx(float(each.detach()), rel=1e-5)


def test_without_noise_and_bound_full_batches_give_the_ordinary_gradient() -> None:
    task = task_of(mlp())
    private = PrivateTask(task, 1e9, 0.0, expected=8.0)
    model, batch = task.init(KEY), batch_of(list(range(8)), [1.0] * 8)
    carry = {**model, "loss": torch.zeros(())}
    plain, plain_carry = gradient(task, carry, batch)
    ours, our_carry = gradient(private, carry, batch)
    assert close(ours, plain)
    assert float(our_carry["loss"]) == pytest.approx(float(plain_carry["loss"]), rel=1e-5)


@pytest.mark.parametrize("clip", [0.05, 0.5, 3.0])
def test_one_example_moves_the_sum_by_clip_at_most_and_by_clip_where_it_is_long(clip: float) -> None:
    task = task_of(mlp())
    model, rows = task.init(KEY), list(range(12))
    long = []
    for i in range(0, 240, 7):
        with_it, without = ([1.0] * 11 + [m] for m in (1.0, 0.0))
        moved = []
        for mask in (with_it, without):
            moved.append(both(PrivateTask(task, clip, 0.0), model["params"], batch_of([*rows[:11], i], mask))[1][0])
        long.append(float(tree.norm(tree.sub(*moved))))
    assert max(long) <= clip * (1 + 1e-5)
    assert (max(long) >= clip * (1 - 1e-4)) == (clip < 3)


def test_an_example_whose_gradient_is_no_number_counts_as_nothing() -> None:
    task = task_of(mlp())
    private, model = PrivateTask(task, 0.5, 0.0), task.init(KEY)
    good = both(private, model["params"], batch_of([1, 2], [1, 1]))
    for wrong in (math.nan, math.inf):
        x = torch.cat([X[[1, 2]], torch.full((1, 1, 6, 6), wrong)])
        batch = {"x": x, "y": Y[[1, 2, 0]], "mask": torch.ones(3), "key": KEY}
        for (g, loss), (wanted, _) in zip(both(private, model["params"], batch), good, strict=True):
            assert close(g, wanted)
            assert math.isfinite(float(loss))  # whether a client is left out must not hang on one example


def test_examples_have_dropout_of_their_own_wherever_they_are_computed() -> None:
    task = task_of(mlp(dropout=0.5))
    private = PrivateTask(task, 1.0, 0.0, keyed=task.keyed)
    same = batch_of([5, 5, 5, 5], [1, 1, 1, 1])
    loop, stack = both(private, task.init(KEY)["params"], same)
    assert close(stack[0], loop[0])
    one = both(private, task.init(KEY)["params"], batch_of([5], [1]))[0][0]
    assert not close(loop[0], tree.scale(one, 4.0), within=1e-2)


def test_a_whole_client_is_divided_by_its_size() -> None:
    task = task_of(mlp())
    private = PrivateTask(task, 0.5, 0.0, full=True)
    wanted = tree.scale(by_hand(mlp(), [0, 1, 2], 0.5), 1 / 3)
    for g, _ in both(private, task.init(KEY)["params"], batch_of([0, 1, 2, 0], [1, 1, 1, 0])):
        assert close(g, wanted)


def test_extra_terms_are_added_as_they_are() -> None:
    task = task_of(mlp())
    private, model = PrivateTask(task, 1e-3, 0.0, expected=2.0), task.init(KEY)
    batch, carry = batch_of([0, 1], [1, 1]), {**model, "loss": torch.zeros(())}
    pull, _ = gradient(private, carry, batch, lambda p: 50.0 * torch.stack([x.sum() for x in tree.leaves(p)]).sum())
    without, _ = gradient(private, carry, batch)
    moved = tree.sub(pull, without)
    assert all(bool((x - 50.0).abs().max() < 1e-3) for x in tree.leaves(moved))


# Noise


def noise(keys: Tensor, clip: float = 0.5, noise_multiplier: float = 3.0, expected: float = 4.0) -> Tensor:
    """What batches without a real example give: (keys, parameters)."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 1))
    task = Supervised(module, Regression(), {"x": X[:2], "y": torch.zeros(2, 1), "mask": torch.ones(2)})
    private, params = PrivateTask(task, clip, noise_multiplier, expected), task.init(KEY)["params"]

    def one(key: Tensor) -> Tensor:
        batch = {"x": X[:1], "y": torch.zeros(1, 1), "mask": torch.zeros(1), "key": key}
        return torch.cat([x.flatten() for x in tree.leaves(private.gradient(params, {}, batch)[0])])

    with functional(), torch.no_grad():
        return torch.func.vmap(one)(keys)


def test_noise_has_the_mean_and_the_scale_that_were_promised() -> None:
    # 4,000 x 37 draws; five deviations on each of two statistics: a false alarm in 1 of 800,000 choices of the key
    keys = torch.stack([rng.key("noise", i) for i in range(4_000)])
    drawn = noise(keys).double() / (3.0 * 0.5 / 4.0)
    n = drawn.numel()
    assert abs(float(drawn.mean())) < 5 / math.sqrt(n)
    assert abs(float(drawn.var()) - 1) < 5 * math.sqrt(2 / n)
    assert float(drawn.abs().max()) > 3.5


def test_noise_of_two_steps_and_of_two_parameters_has_nothing_in_common() -> None:
    # A correlation of 4,000 draws has deviation 1 / 63; 0.08 is five of them: a false alarm in 1 of 1e6.
    drawn = noise(torch.stack([rng.key("noise", i) for i in range(4_001)]))
    assert abs(float(torch.corrcoef(torch.stack([drawn[:-1, 0], drawn[1:, 0]]))[0, 1])) < 0.08
    across = torch.corrcoef(drawn[:4_000].T) - torch.eye(37)
    assert float(across.abs().max()) < 0.09  # 5.7 deviations for 666 pairs: in 1 of 1e5


def test_noise_is_there_when_nobody_was_drawn_and_no_other_when_somebody_was() -> None:
    task = task_of(mlp())
    params = task.init(KEY)["params"]
    quiet, loud = PrivateTask(task, 0.5, 0.0, 4.0), PrivateTask(task, 0.5, 2.0, 4.0)
    found = []
    for mask in ([1.0, 1.0], [0.0, 0.0]):
        pairs = zip(
            both(loud, params, batch_of([0, 1], mask)), both(quiet, params, batch_of([0, 1], mask)), strict=True
        )
        found += [tree.sub(a[0], b[0]) for a, b in pairs]
    assert float(tree.norm(found[0])) > 0.5
    assert all(close(f, found[0]) for f in found)


# Engines


class NobodyDrawn(Population):
    """As many steps as ever, and no example in any of them."""

    def cohort(self, ids: Tensor, key: Tensor, table: int = 0) -> Cohort:
        cohort = super().cohort(ids, key, table)
        return replace(cohort, count=torch.zeros_like(cohort.count))


@pytest.mark.parametrize("make", [Loop, Vector, Threads])
def test_a_step_that_drew_nobody_still_adds_its_noise_on_every_engine(make: Any) -> None:
    problem = network()
    private = PrivateTask(problem.task, 1.0, 2.0, 3.0, keyed=problem.keyed)
    nobody = NobodyDrawn(problem.partition, problem.batch, shuffle=False)

    def sent(engine: Any) -> Tree:
        made = federation(
            problem,
            FedAvg(private, 0.1),
            lambda data, store: engine(replace(data, population=nobody, keyed=True), store),
        )
        value: Tree = made.engine.run(made.request([0, 1])).partial.value["delta"]
        return value

    result = sent(make)
    assert float(tree.norm(result)) > 0
    assert close(result, sent(Loop))
    assert int(nobody.steps(torch.tensor([0, 1])).sum()) > 2


def simulate(engine: Any, sampling: str = "shuffled", module: nn.Module | None = None, **changed: Any) -> atoll.Run:
    privacy = {"max_norm": 0.5, "noise_multiplier": 0.8, "sampling": sampling, **changed.pop("privacy", {})}
    options: dict[str, Any] = {
        "clients": LISTS,
        "algorithm": {"name": "fedavg", "lr": 0.5},
        "rounds": 3,
        "cohort": 5,
        "batch": 4,
        "evaluate": {"clients": 0},
        "local": {"privacy": privacy, "max_steps": changed.pop("max_steps", None)},
    }
    return atoll.simulate(module or mlp(0.3), (X, Y), engine=engine, **{**options, **changed})


def gap(a: atoll.Run, b: atoll.Run) -> float:
    return float(tree.norm(tree.sub(a.params, b.params)) / tree.norm(b.params))


@pytest.mark.parametrize(
    ("sampling", "batch"),
    [
        ("shuffled", 4),
        ("poisson", 4),
        *(slow(*p) for p in [("shuffled", 0), ("poisson", 1), ("poisson", 0), ("fixed", 4)]),
    ],
)
def test_a_run_is_the_same_on_every_engine_and_in_any_chunks(sampling: str, batch: int) -> None:
    options: dict[str, Any] = {"batch": batch, "rounds": 2, "max_steps": 5}
    truth = simulate("loop", sampling, **options)
    engines = [{"name": "vector"}, {"name": "vector", "chunk": 2, "capture": False}, "threads"]
    assert [gap(simulate(e, sampling, **options), truth) < 1e-5 for e in engines] == [True] * 3


@pytest.mark.slow
def test_convolutions_run_the_same_on_every_engine() -> None:
    truth = simulate("loop", "poisson", cnn())
    assert gap(simulate("vector", "poisson", cnn()), truth) < 1e-5
    assert gap(simulate("threads", "poisson", cnn()), truth) < 1e-5


@pytest.mark.slow
def test_a_stack_whose_steps_are_captured_gives_the_same_noise() -> None:
    truth = simulate({"name": "vector", "capture": False}, epochs=8)
    assert gap(simulate({"name": "vector"}, epochs=8), truth) < 1e-5


def test_a_resumed_run_has_the_noise_that_it_would_have_had(tmp_path: Path) -> None:
    whole = simulate("vector", "poisson", rounds=4)

    def until_the_second(done: int, rounds: int, entry: object) -> None:
        if done == 2:
            raise GoneError

    options: dict[str, Any] = {"rounds": 4, "out": tmp_path / "run", "checkpoint": {"every": 1}}
    with pytest.raises(GoneError):
        simulate("vector", "poisson", watch=until_the_second, **options)
    assert gap(simulate("vector", "poisson", resume=True, **options), whole) == 0


def test_the_seed_decides_the_noise_and_no_noise_is_ordinary_training() -> None:
    assert gap(simulate("vector", seed=1), simulate("vector")) > 1e-3
    lists = [list(range(20 * c, 20 * c + 20)) for c in range(12)]
    quiet = simulate("vector", module=mlp(), clients=lists, privacy={"max_norm": 1e9, "noise_multiplier": 0.0})
    plain = simulate("vector", module=mlp(), clients=lists, local={})
    assert gap(quiet, plain) < 1e-5


@pytest.mark.parametrize("engine", ["loop", "vector"])
def test_noise_has_keys_where_nothing_else_draws(engine: str) -> None:
    runs = [simulate(engine, module=mlp(), seed=seed, batch=0, cohort="everyone", rounds=1) for seed in (0, 1)]
    assert gap(*runs) > 1e-3


def test_runs_that_go_together_have_each_their_own_noise(tmp_path: Path) -> None:
    def given(seed: int) -> Experiment:
        privacy = {"max_norm": 1.0, "noise_multiplier": 1.0, "sampling": "poisson"}
        parts = {"rounds": 2, "seed": seed, "data": "digits", "partition": {"name": "iid", "clients": 3}}
        parts |= {"algorithm": {"name": "fedavg", "lr": 0.1}, "engine": "vector", "evaluate": {"clients": 0}}
        return Experiment.parse({**parts, "local": {"batch": 16, "max_steps": 2, "privacy": privacy}})

    both = run_together([given(0), given(1)], [tmp_path / "0", tmp_path / "1"])
    assert [run.info["engine"]["together"] for run in both] == [2, 2]
    for seed, run in enumerate(both):
        assert gap(run, atoll.run(given(seed), tmp_path / f"alone {seed}")) < 1e-5


# What is built, and what is refused


def set_up(module: nn.Module | None = None, lists: Any = LISTS, **changed: Any) -> Setup:
    privacy = {"max_norm": 0.5, "noise_multiplier": 0.8, **changed.pop("privacy", {})}
    local = {"batch": 4, **changed.pop("local", {}), "privacy": {k: v for k, v in privacy.items() if v is not None}}
    parts = {"algorithm": {"name": "fedavg", "lr": 0.5}, "rounds": 3, "cohort": {"name": "fixed", "size": 5}, **changed}
    data = {"name": "atoll.runs.python_inputs:arrays", "digest": "-"}
    experiment = Experiment.parse({"data": data, "local": local, **parts})
    dataset = Dataset.from_arrays(X, Y, test=(X[:20], Y[:20]))
    clients = lists if isinstance(lists, Partition) else Partition.from_lists(lists)
    return assemble(experiment, dataset, clients, module or mlp(), "cpu")


class Greedy(FedAvg):
    """Sends the largest pixel along."""

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        new = super().step(carry, sent, own, batch)
        return {**new, "params": tree.map(lambda p: p + 1e-6 * batch["x"].max(), new["params"])}


@dataclass(frozen=True)
class Nosy(Schedule):
    """Follows the last training loss."""

    start: float

    def value(self, round: int, history: Sequence[Mapping[str, Any]]) -> float:
        return self.start if round == 0 else float(history[-1]["train_loss"])


NORM = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 2))


class Keeps(nn.Module):
    """Counts in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(36, 2)
        self.register_buffer("mean", torch.zeros(36))

    def forward(self, x: Tensor) -> Tensor:
        self.mean += x.flatten(1).mean(0)
        out: Tensor = self.head(x.flatten(1))
        return out


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "clip of 0": ({"privacy": {"max_norm": 0.0}}, "local.privacy.max_norm: must be above 0"),
    "no clip": ({"privacy": {"max_norm": None}}, "local.privacy.max_norm: is missing"),
    "endless noise": ({"privacy": {"noise_multiplier": math.inf}}, "privacy.noise_multiplier: must be a finite number"),
    "less than no noise": ({"privacy": {"noise_multiplier": -1.0}}, "privacy.noise_multiplier: must be at least 0"),
    "epsilon of 0": ({"privacy": {"noise_multiplier": None, "epsilon": 0.0}}, "local.privacy.epsilon: must be above 0"),
    "delta of 1": ({"privacy": {"delta": 1.0}}, "local.privacy.delta: must be below 1"),
    "delta above 1 / n": ({"privacy": {"delta": 0.06}}, "above 1 / 20"),
    "both": ({"privacy": {"epsilon": 2.0}}, "one of noise_multiplier and epsilon, and not both"),
    "neither": ({"privacy": {"noise_multiplier": None}}, "one of noise_multiplier and epsilon"),
    "unknown sampling": ({"privacy": {"sampling": "random"}}, "'shuffled', 'poisson' or 'fixed'"),
    "an order to keep": ({"privacy": {"sampling": "poisson"}, "local": {"shuffle": False}}, "local.shuffle: false"),
    "batch norm": ({"module": NORM}, "Use task.batch_norm = 'group', or 'freeze'"),
    "local batch norm": ({"module": NORM, "task": {"batch_norm": "local"}}, "task.batch_norm: BatchNorm mixes"),
    "a buffer": ({"module": Keeps()}, "writes in its buffer 'mean'"),
    "moon": ({"algorithm": {"name": "moon", "lr": 0.1}}, "reads the features of a batch"),
    "adafedprox": ({"algorithm": {"name": "adafedprox", "lr": 0.1}}, "(sent/loss)"),
    "ditto": ({"algorithm": {"name": "ditto", "lr": 0.1}}, "Ditto takes 2 gradients of every batch"),
    "scaffold I": ({"algorithm": {"name": "scaffold", "lr": 0.1, "option": "I"}}, "for SCAFFOLD option = 'II'"),
    "a size that is secret": (
        {"algorithm": {"name": "fedsgd", "lr": 0.1}, "privacy": {"sampling": "poisson"}}, "(sent/gradient/"),
    "pixels": ({"algorithm": {"name": f"{__name__}:Greedy", "lr": 0.1}}, "(sent/delta/"),
    "stopping by the loss": ({"stop": {"patience": 2, "metric": "train_loss", "better": "lower"}}, "stop.metric: "),
    "a plateau of the loss": (
        {"algorithm": {"name": "fedavg", "lr": {"name": "plateau", "start": 0.1, "patience": 2,
                                                "metric": "train_loss"}}}, "plateau, metric: 'train_loss'"),
    "a plateau of the loss in a transform": (
        {"transform": [{"name": "clip_l2", "max_norm": {"name": "plateau", "start": 1.0, "metric": "train_loss"}}]},
        "plateau, metric: 'train_loss' is read from the clients, which local.privacy does not cover"),
    "a schedule of one's own": (
        {"transform": [{"name": "clip_l2", "max_norm": {"name": f"{__name__}:Nosy", "start": 1.0}}]},
        "schedule Nosy: 'train_loss' is read"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_not_be_private_is_refused_with_advice(name: str) -> None:
    changed, words = REFUSED[name]
    with pytest.raises(ConfigError) as refused:
        set_up(**changed)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "changed",
    [
        {"module": NORM, "task": {"batch_norm": "group"}},
        {"module": NORM, "task": {"batch_norm": "freeze"}},
        {"algorithm": {"name": "fedprox", "lr": 0.1, "mu": 0.1}},
        {"algorithm": {"name": "scaffold", "lr": 0.1}},
        {"algorithm": {"name": "fednova", "lr": 0.1}},
        {"algorithm": {"name": "feddyn", "lr": 0.1}},
        {"algorithm": {"name": "fedadam", "lr": 0.1}},
        {"algorithm": {"name": "centralised", "lr": 0.1}, "privacy": {"delta": 1e-4}},
        {"algorithm": {"name": "local", "lr": 0.1}},
        {"algorithm": {"name": "fedsgd", "lr": 0.1}},
        {"privacy": {"noise_multiplier": None, "epsilon": 30.0}},
        {"transform": [{"name": "clip_l2", "max_norm": {"name": "plateau", "start": 1.0, "metric": "loss"}}]},
        {"transform": [{"name": "clip_l2", "max_norm": {"name": "cosine", "start": 1.0, "over": 3}}]},
    ],
)
def test_what_reads_private_gradients_alone_is_taken(changed: dict[str, Any]) -> None:
    setup = set_up(**changed)
    assert setup.example_privacy is not None
    assert setup.example_privacy.block(3)["holds"] is True


def test_old_experiments_keep_their_fingerprint_and_new_ones_read_back() -> None:
    old: dict[str, Any] = {"rounds": 5, "data": "digits", "algorithm": {"name": "fedavg", "lr": 0.1}}
    old["partition"] = {"name": "iid", "clients": 4}
    assert Experiment.parse(old).digest() == "05d3ef14b09e37c7c63be65651ea7f09"
    new = Experiment.parse({**old, "local": {"privacy": {"max_norm": 1.0, "epsilon": 2.0}}})
    assert new.digest() != Experiment.parse(old).digest()
    assert Experiment.parse(tomllib.loads(new.to_toml())) == new
