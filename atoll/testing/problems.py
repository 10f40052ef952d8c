"""Small federations on which the truth is known: quadratics with a closed-form optimum, and a small network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor, nn

from atoll import rng, tree
from atoll.core import Model, PublicExamples, SecondModel, Task, UnitLayer
from atoll.data import Partition
from atoll.tasks import Classification, Supervised
from atoll.tasks.models import Gkt
from atoll.tree import Tree

SIZES = (2, 5, 3, 7, 4, 6)  # examples of each client: with a batch of 2, one to four steps and partial last batches


@dataclass(frozen=True)
class Problem:
    """A task, where training starts, and who holds which rows."""

    task: Task
    model: Model
    columns: Tree
    partition: Partition
    batch: int = 2
    epochs: int = 1
    keyed: bool = False

    def only(self, client: int) -> Problem:
        """The same problem with one client."""
        return replace(self, partition=Partition.from_lists([self.partition.of(client)]))

    def public(self) -> PublicExamples:
        """A few inputs that all have."""
        return PublicExamples({"x": self.columns["x"][:5]})

    def second_model(self) -> SecondModel:
        """A model for an algorithm that owns another: it starts where the learned one does, also in the mirror."""
        return Quadratics(self.model) if isinstance(self.task, Quadratics) else self.task


class Quadratics:
    """f_i(w) = 1/2 (w - b_i)' A_i (w - b_i): every row of a client carries its A_i (in x) and b_i (in y).

    All batches of a client have the same gradient, so nothing is random, and the optimum is a linear equation.
    w is kept in three parameters, so that some of it can be called the head and some of it normalisation; a moving
    average of b_i is the buffer. It starts from the key, unless it is told where.
    """

    PARTS = (("body", 2), ("norm", 1), ("head", 1))
    WIDTH = 4

    def __init__(self, start: Model | None = None) -> None:
        self.start = start

    def init(self, key: Tensor) -> Model:
        if self.start is not None:
            return self.start
        parts = [rng.normal(rng.fold(key, i), (n,)) for i, (_, n) in enumerate(self.PARTS)]
        params = {name: p for (name, _), p in zip(self.PARTS, parts, strict=True)}
        return {"params": params, "buffers": {"centre": torch.zeros(self.WIDTH)}}

    def loss(self, params: Tree, buffers: Tree, batch: Tree) -> tuple[Tensor, Tree]:
        mask, n = batch["mask"], batch["mask"].sum().clamp(min=1)
        centre = (batch["y"] * mask[:, None]).sum(0) / n
        return (self._each(params, batch) * mask).sum() / n, {"centre": 0.9 * buffers["centre"] + 0.1 * centre}

    def measure(self, params: Tree, buffers: Tree, batch: Tree) -> Tree:
        return {"loss": self._each(params, batch) * batch["mask"], "weight": batch["mask"]}

    def measure_together(self, params: Tree, buffers: Tree, batch: Tree) -> Tree:
        return self.measure(tree.map(lambda x: x.mean(0), params), buffers, batch)

    def logits(self, params: Tree, buffers: Tree, batch: Tree, training: bool = True) -> Tensor:
        return self.features(params, buffers, batch)

    def features(self, params: Tree, buffers: Tree, batch: Tree, training: bool = True) -> Tensor:
        return torch.einsum("bij,j->bi", self._curvature(batch), flat(params))

    def statistics(self, params: Tree, buffers: Tree, batch: Tree) -> Tree:
        n = batch["mask"].sum().clamp(min=1)
        return {"centre": (batch["y"] * batch["mask"][:, None]).sum(0) / n}

    def renewed_buffers(self, means: Tree, buffers: Tree, examples: Tensor) -> Tree:
        return means

    def unit_layers(self) -> tuple[UnitLayer, ...]:
        return ()

    def names(self, kind: str) -> tuple[str, ...]:
        return (kind,)

    def head_shape(self) -> tuple[int, int]:
        return 1, self.WIDTH

    def is_cross_entropy(self) -> bool:
        return False

    def _each(self, params: Tree, batch: Tree) -> Tensor:
        off = flat(params) - batch["y"]
        return 0.5 * torch.einsum("bi,bij,bj->b", off, self._curvature(batch), off)

    def _curvature(self, batch: Tree) -> Tensor:
        found: Tensor = batch["x"].reshape(-1, self.WIDTH, self.WIDTH)
        return found


def flat(params: Tree) -> Tensor:
    """The parameters of a quadratic as one vector."""
    return torch.cat([params[name] for name, _ in Quadratics.PARTS])


def quadratics() -> Problem:
    """Six clients that disagree in optimum, curvature, size and number of steps."""
    return _fresh(_quadratics())


@cache
def _quadratics() -> Problem:
    d, n = Quadratics.WIDTH, len(SIZES)
    key = rng.key("quadratics")
    roots = rng.normal(rng.fold(key, 0), (n, d, d))
    curvature = roots @ roots.transpose(1, 2)
    top = torch.linalg.eigvalsh(curvature)[:, -1]
    curvature = 1.5 * curvature / top[:, None, None] + 0.5 * torch.eye(d)
    centre = 2.0 * rng.normal(rng.fold(key, 1), (n, d))
    owner = torch.arange(n).repeat_interleave(torch.tensor(SIZES))
    task = Quadratics()
    columns = {"x": curvature.reshape(n, -1)[owner], "y": centre[owner]}
    return Problem(task, task.init(rng.fold(key, 2)), columns, _in_a_row(), batch=2)


def optimum(problem: Problem, weights: Tensor) -> Tensor:
    """The w that solves sum_i p_i A_i (w - b_i) = 0, p_i the share of weights[i]."""
    first = torch.stack([problem.partition.of(i)[0] for i in range(problem.partition.size)])
    a = problem.columns["x"][first].double().reshape(-1, Quadratics.WIDTH, Quadratics.WIDTH)
    b = problem.columns["y"][first].double()
    p = (weights.double() / weights.double().sum())[:, None, None]
    pulled = (p * a @ b[..., None]).sum(0)
    found: Tensor = torch.linalg.solve((p * a).sum(0), pulled)
    return found[:, 0]


def mirrored(problem: Problem, about: float) -> Problem:
    """The same quadratics seen in a mirror: w becomes about - w, and so does every b_i."""
    params = tree.map(lambda w: about - w, problem.model["params"])
    columns = {**problem.columns, "y": about - problem.columns["y"]}
    return replace(problem, model={**problem.model, "params": params}, columns=columns)


def network() -> Problem:
    """A small network with BatchNorm and dropout on random data, clients of different sizes."""
    return _fresh(_network())


@cache
def _network() -> Problem:
    key, total = rng.key("network"), sum(SIZES)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.25), nn.Linear(6, 3))
    x, y = rng.normal(rng.fold(key, 0), (total, 5)), rng.bits(rng.fold(key, 1), (total,)) % 3
    example = {"x": x[:4], "y": y[:4], "mask": torch.ones(4)}
    task = Supervised(model, Classification(3), example)
    return Problem(task, task.init(key), {"x": x, "y": y}, _in_a_row(), batch=3, keyed=True)


def features() -> Problem:
    """A network that is cut in two, an extractor for clients and a tower for the server, on random data."""
    return _fresh(_features())


@cache
def _features() -> Problem:
    key, total = rng.key("features"), sum(SIZES)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = Gkt((5,), 3, features=4, widths=[6])
    x, y = rng.normal(rng.fold(key, 0), (total, 5)), rng.bits(rng.fold(key, 1), (total,)) % 3
    task = Supervised(model, Classification(3), {"x": x[:4], "y": y[:4], "mask": torch.ones(4)})
    return Problem(task, task.init(key), {"x": x, "y": y}, _in_a_row(), batch=3)


def _fresh(problem: Problem) -> Problem:
    """Tensors of its own: what is under test may write into them."""
    model, columns = (tree.map(torch.clone, t) for t in (problem.model, problem.columns))
    return replace(problem, model=model, columns=columns)


def _in_a_row() -> Partition:
    rows = iter(range(sum(SIZES)))
    return Partition.from_lists([[next(rows) for _ in range(n)] for n in SIZES])
