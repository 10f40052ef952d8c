"""DP-SGD: clipped per-example gradients plus noise, differentially private for every example of a client.

Song, Chaudhuri and Sarwate (2013); Abadi et al., Deep learning with differential privacy (2016).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from atoll import rng, tree
from atoll.core import (
    Model,
    Positive,
    StepNeeds,
    Task,
    UnitLayer,
    Unsigned,
    functional,
    gradient_and_value,
    is_functional,
)
from atoll.errors import ConfigError
from atoll.tasks.ghost import GhostLayer, clipped_gradient_sum
from atoll.tasks.layers import BatchNorm
from atoll.tasks.per_example_norms import MAX_NORM, example_norms
from atoll.tasks.supervised import Supervised
from atoll.tree import Tree

_NOISE = 1 << 32  # folded into the key of the step; examples fold in 2 << 32 and their place
_EXAMPLES = 2
_SAFE = 1 - 4e-6  # rounding must not make an example longer than `max_norm`
_LARGE = 1e20  # no loss counts for more: whether a client is left out must not hang on one example


@dataclass(frozen=True)
class PrivateTask:
    """A task whose gradient is (sum of g_i min(1, max_norm / |g_i|) + N(0, (noise_multiplier max_norm)^2)) / expected.

    g_i is the per-example gradient: that of example i's own loss, over all parameters. `expected` is the size of a
    batch as planned, never as drawn; a whole client (`full`) is as large as it is. The noise comes from the key of
    client, round and step. What else could be read from a batch is refused.
    """

    task: Task
    max_norm: Positive
    noise_multiplier: Unsigned
    expected: Positive = 1.0
    full: bool = False
    keyed: bool = False  # does a forward pass draw from the key?
    ghost: tuple[GhostLayer, ...] = ()  # all there is to learn, where one backward pass of a batch is enough

    def gradient(self, params: Tree, buffers: Tree, batch: Tree) -> tuple[Tree, Tensor]:
        """The private gradient, and the mean loss of the real examples, which nothing protects."""
        size = batch["mask"].sum()
        total, loss = self._stacked(params, buffers, batch) if is_functional() else self._loop(params, buffers, batch)
        noise = _flat_noise(params, rng.fold(batch["key"], _NOISE))
        expected = size if self.full else self.expected
        std = self.noise_multiplier * self.max_norm
        g = tree.map(lambda x, z: (x + (std * z).to(x.dtype)) / expected, total, noise)
        return g, loss / size.clamp(min=1)

    def _stacked(self, params: Tree, buffers: Tree, batch: Tree) -> tuple[Tree, Tensor]:
        """All examples side by side: the sum of clipped per-example gradients, and of losses."""
        examples, mask = _columns(batch), batch["mask"]
        if self.ghost and isinstance(self.task, Supervised):
            each = {**batch, "key": self._keys(batch).expand(len(mask), 2)}
            ghost_sum = clipped_gradient_sum(self.task, self.ghost, params, buffers, each, self._factor)
            if ghost_sum is not None:
                return ghost_sum[0], (_finite(ghost_sum[1]) * mask).sum()

        def one(example: Tree, key: Tensor) -> tuple[Tree, Tensor]:
            return grad_and_value(lambda p: self._loss(p, buffers, example, key))(params)  # type: ignore[no-any-return]

        with functional(False):  # layers made for one axis of clients do not know a second one
            each, losses = vmap(one, in_dims=(0, 0 if self.keyed else None), randomness="different")(
                examples, self._keys(batch)
            )
        norms = torch.linalg.vector_norm(torch.stack([example_norms(x) for x in tree.leaves(each)]), dim=0)
        counted = (norms <= MAX_NORM) & (mask > 0)
        factor = torch.where(counted, self._factor(norms), 0.0).float()
        total = tree.map(lambda x: torch.where(_broadcast(counted, x), x * _broadcast(factor, x), 0.0).sum(0), each)
        return total, (_finite(losses) * mask).sum()

    def _loop(self, params: Tree, buffers: Tree, batch: Tree) -> tuple[Tree, Tensor]:
        """The same, one example after the other: takes any module, and is what the stack must agree with."""
        examples, keys = _columns(batch), self._keys(batch)
        total, losses = tree.zeros_like(params), torch.zeros_like(batch["mask"][0])
        for i in batch["mask"].nonzero().flatten().tolist():
            example, key = tree.rows(examples, i), keys[i] if self.keyed else keys
            g, (loss, _) = gradient_and_value(partial(self._alone, buffers, example, key), params)
            norm = torch.linalg.vector_norm(torch.cat([example_norms(x[None]) for x in tree.leaves(g)]))
            losses = losses + _finite(loss)
            if norm <= MAX_NORM:
                total = tree.add(total, tree.scale(g, self._factor(norm)))
        return total, losses

    def _alone(self, buffers: Tree, example: Tree, key: Tensor, params: Tree) -> tuple[Tensor, Tree]:
        return self._loss(params, buffers, example, key), {}

    def _loss(self, params: Tree, buffers: Tree, example: Tree, key: Tensor) -> Tensor:
        """Of one example, which is its whole batch: what a layer does across a batch cannot mix examples."""
        alone = tree.map(lambda x: x[None], example)
        mask = torch.ones(1, device=key.device)
        return self.task.loss(params, buffers, {**alone, "mask": mask, "key": key})[0]

    def _factor(self, norm: Tensor) -> Tensor:
        return (self.max_norm * _SAFE / norm).clamp(max=1.0)

    def _keys(self, batch: Tree) -> Tensor:
        """A key for every example, by its place in the batch, where the model draws from one."""
        key = batch["key"]
        if not self.keyed:
            return key  # type: ignore[no-any-return]
        place = torch.arange(len(batch["mask"]), device=key.device)
        return torch.stack(rng.threefry(key[0], key[1], place, torch.full_like(place, _EXAMPLES)), -1)

    def step_needs(self) -> StepNeeds:
        """What training on a batch takes: noise has a key, whether or not the model draws."""
        return StepNeeds(key=True, example_gradients=True)

    def init(self, key: Tensor) -> Model:
        return self.task.init(key)

    def names(self, kind: str) -> tuple[str, ...]:
        return self.task.names(kind)

    def head_shape(self) -> tuple[int, int]:
        return self.task.head_shape()

    def is_cross_entropy(self) -> bool:
        return self.task.is_cross_entropy()

    def unit_layers(self) -> tuple[UnitLayer, ...]:
        return self.task.unit_layers()

    def loss(self, params: Tree, buffers: Tree, batch: Tree) -> tuple[Tensor, Tree]:
        raise leak_error("the loss of a batch")

    def measure(self, params: Tree, buffers: Tree, batch: Tree) -> Tree:
        raise leak_error("the predictions of a batch")

    def measure_together(self, params: Tree, buffers: Tree, batch: Tree) -> Tree:
        raise leak_error("the predictions of a batch")

    def logits(self, params: Tree, buffers: Tree, batch: Tree, training: bool = True) -> Tensor:
        raise leak_error("the logits of a batch")

    def features(self, params: Tree, buffers: Tree, batch: Tree, training: bool = True) -> Tensor:
        raise leak_error("the features of a batch")

    def statistics(self, params: Tree, buffers: Tree, batch: Tree) -> Tree:
        raise leak_error("the statistics of a batch")

    def renewed_buffers(self, means: Tree, buffers: Tree, examples: Tensor) -> Tree:
        raise leak_error("the statistics of a batch")


def leak_error(what: str) -> ConfigError:
    """Of an algorithm that takes more from examples than their clipped gradients."""
    return ConfigError(
        f"local.privacy: the algorithm reads {what}, which noise on gradients does not cover. "
        "Use algorithm.name = 'fedavg', 'fedprox' or 'scaffold', or leave [local.privacy] out."
    )


def unsupported_parts(task: Supervised) -> list[str]:
    """What a model and its loss must not have: anything but gradients of their own that examples leave a trace in."""
    if not task.objective.loss.separable:
        return [
            "loss: is not the mean over a batch of what each example adds alone, so examples have no gradients of "
            "their own to clip for local.privacy. With class weights w that is "
            "(w[y] * F.cross_entropy(out, y, reduction='none')).mean()."
        ]
    norms = [m for m in task.model.modules() if isinstance(m, BatchNorm)]
    if any(not m.frozen or not m.tracked for m in norms):
        return [
            "task.batch_norm: BatchNorm mixes the examples of a batch and keeps their statistics, which local.privacy "
            "does not cover. Use task.batch_norm = 'group', or 'freeze'."
        ]
    if task.mutable_buffers:
        return [
            f"task.model: writes in its buffer {task.mutable_buffers[0]!r} while it trains, which local.privacy does "
            "not cover. Use a model that keeps nothing of its batches."
        ]
    return []


def _columns(batch: Tree) -> Tree:
    return {k: v for k, v in batch.items() if k not in ("mask", "key")}


def _finite(loss: Tensor) -> Tensor:
    """A loss within bounds that leave room for a sum over every example and step; one that is no number is large."""
    return loss.float().nan_to_num(_LARGE).clamp(-_LARGE, _LARGE)


def _broadcast(row: Tensor, like: Tensor) -> Tensor:
    """One number per example, broadcast over its gradient."""
    return row.reshape(-1, *[1] * (like.dim() - 1))


def _flat_noise(like: Tree, key: Tensor) -> Tree:
    """Standard normal numbers in the shape of the tree, from one stream."""
    flat = rng.normal_dp(key, (tree.count(like),))
    pieces = iter(torch.split(flat, [x.numel() for x in tree.leaves(like)]))  # type: ignore[no-untyped-call]
    return tree.map(lambda x: next(pieces).reshape(x.shape), like)  # type: ignore[no-any-return]
