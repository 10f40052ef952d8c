"""Does an algorithm see anything of a client's examples but their private gradients?

Told before the run, by trying: with gradients that are noise alone, two clients with different examples must send the
same and remember the same. What the algorithm does beside that may be anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.core import Algorithm, Info, Model, Task, UnitLayer, functional, resolve
from atoll.data import Dataset
from atoll.errors import ConfigError
from atoll.schedules import Schedule
from atoll.tasks import PrivateTask, leak_error
from atoll.tree import Tree

_ROWS, _STEPS = 4, 3


class NoiseOnlyTask:
    """A task whose gradients are noise from the key. Its loss tells the examples, as a real one does."""

    def __init__(self, private: PrivateTask) -> None:
        self.private, self.gradients = private, 0

    def gradient(self, params: Tree, buffers: Tree, batch: Tree) -> tuple[Tree, Tensor]:
        self.gradients += 1
        row = iter(range(len(tree.leaves(params))))
        g = tree.map(lambda x: _noise(batch["key"], next(row), x), params)
        means = [x.double().mean().float() for k, x in batch.items() if k != "key"]
        return tree.scale(g, 1e-3), torch.stack(means).sum()

    def init(self, key: Tensor) -> Model:
        return self.private.init(key)

    def names(self, kind: str) -> tuple[str, ...]:
        return self.private.names(kind)

    def head_shape(self) -> tuple[int, int]:
        return self.private.head_shape()

    def is_cross_entropy(self) -> bool:
        return self.private.is_cross_entropy()

    def unit_layers(self) -> tuple[UnitLayer, ...]:
        return self.private.unit_layers()

    def loss(self, params: Tree, buffers: Tree, batch: Tree) -> tuple[Tensor, Tree]:
        return self.private.loss(params, buffers, batch)

    def measure(self, params: Tree, buffers: Tree, batch: Tree) -> Tree:
        return self.private.measure(params, buffers, batch)

    def measure_together(self, params: Tree, buffers: Tree, batch: Tree) -> Tree:
        return self.private.measure_together(params, buffers, batch)

    def logits(self, params: Tree, buffers: Tree, batch: Tree, training: bool = True) -> Tensor:
        return self.private.logits(params, buffers, batch, training)

    def features(self, params: Tree, buffers: Tree, batch: Tree, training: bool = True) -> Tensor:
        return self.private.features(params, buffers, batch, training)

    def statistics(self, params: Tree, buffers: Tree, batch: Tree) -> Tree:
        return self.private.statistics(params, buffers, batch)

    def renewed_buffers(self, means: Tree, buffers: Tree, examples: Tensor) -> Tree:
        return self.private.renewed_buffers(means, buffers, examples)


def check_algorithm(
    make: Callable[[Task], Algorithm], dataset: Dataset, private: PrivateTask, model: Model, size_is_private: bool
) -> None:
    """Refuse an algorithm that reads more of a batch than one private gradient, or its size where that is private."""
    noise_only = NoiseOnlyTask(private)
    algorithm = resolve(make(noise_only), 0, [])
    n = len(dataset.train["y"])
    here = torch.arange(min(_ROWS, n))
    masks = torch.ones(_STEPS, len(here))
    others = masks.clone()
    if size_is_private and len(here) > 1:
        others[0, 1:] = 0.0
        others[1] = 0.0
    first = _trial_client(algorithm, dataset, model, here, masks)
    if noise_only.gradients > _STEPS:
        raise ConfigError(
            f"local.privacy: {type(algorithm).__name__} takes {noise_only.gradients / _STEPS:g} gradients of every "
            "batch, and the noise is measured for one. Use algorithm.name = 'fedavg' or 'fedprox'; for SCAFFOLD "
            "option = 'II'."
        )
    second = _trial_client(algorithm, dataset, model, n - 1 - here, others)
    for (path, a), (_, b) in zip(tree.paths(first), tree.paths(second), strict=True):
        if not torch.equal(a, b):
            raise leak_error(f"something of a batch for what it keeps or sends ({path})")


class _LineThatRemembers(dict[str, Any]):
    """A line of a record that has whatever is asked for, and remembers what was."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[str] = set()

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> float:
        self.read.add(name)
        return 1.0

    def get(self, name: str, default: Any = None) -> float:
        return self[name]

    def __iter__(self) -> Iterator[str]:
        """Whoever goes through a line without asking for a name finds one, and reads it."""
        return iter(["round"])

    def keys(self) -> Any:
        return list(self)

    def values(self) -> Any:
        return [self[name] for name in self]

    def items(self) -> Any:
        return [(name, self[name]) for name in self]


def metrics_read(schedule: Schedule) -> set[str]:
    """What a schedule reads in the lines of the rounds before, told by trying.

    >>> from atoll.schedules import Cosine, Plateau
    >>> metrics_read(Plateau(0.1, metric="train_loss")), metrics_read(Cosine(0.1, over=10))
    ({'train_loss'}, set())
    """
    lines = [_LineThatRemembers() for _ in range(_STEPS)]
    for call in (lambda: schedule.value(_STEPS, lines), lambda: schedule.finished(lines)):
        with suppress(Exception):  # one of the user's own that wants more than numbers: what it has read, it has read
            call()
    return {name for line in lines for name in line.read}


def _noise(key: Tensor, row: int, like: Tensor) -> Tensor:
    at = torch.tensor([row], device=like.device)
    return rng.quick_normal(key, at, like.numel()).reshape(like.shape).to(like.dtype)


def _trial_client(algorithm: Algorithm, dataset: Dataset, model: Model, rows: Tensor, masks: Tensor) -> Tree:
    """What a client with these examples sends and remembers."""
    device = next(x.device for x in tree.leaves(model["params"]))
    columns = tree.to(tree.rows(dataset.train, rows), device)
    server, own = algorithm.init(model, rng.key("blind", "server")), algorithm.client_state(model)
    with functional(), torch.no_grad():
        sent = algorithm.send(server)
        carry = algorithm.start(sent, own)
        for s in range(_STEPS):
            batch = {**dataset.decode(columns), "mask": masks[s].to(device), "key": rng.key("blind", s).to(device)}
            carry = algorithm.step(carry, sent, own, batch)
        one = torch.ones((), device=device)
        info = Info(torch.zeros((), dtype=torch.int64, device=device), _ROWS * one, _STEPS * one)
        update, own = algorithm.finish(carry, sent, own, info)
    return {"sent": update.value, "weight": update.weight, "client_state": own}
