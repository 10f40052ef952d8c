"""How canaries get through the client's side of a chain, without a dense update for each where that is exact."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.func import vmap

from atoll import rng, tree
from atoll.core import Chain, Total, Transform, Update
from atoll.errors import ConfigError
from atoll.tree import Tree

AMPLITUDE = 1e6  # before clipping
DENSE = 1 << 24  # numbers of dense updates made at a time


@dataclass(frozen=True)
class Places:
    """Canary i adds sign[i] x something at position at[i] of leaf number leaf[i] of an update."""

    leaf: Tensor  # (m,)
    at: Tensor  # (m,)
    sign: Tensor  # (m,) float
    blank: Tree  # zeros in the shape of an update, one number of memory for each tensor

    def read(self, value: Tree) -> Tensor:
        """What stands in the canaries' places, times their signs: (m,) float64."""
        parts = dict(tree.paths(value))
        found = torch.zeros(len(self.leaf), dtype=torch.float64, device=self.at.device)
        for i, (path, _) in enumerate(tree.paths(self.blank)):
            mine = self.leaf == i
            found[mine] = parts[path].flatten()[self.at[mine]].double()
        return found * self.sign


def places(count: int, like: Tree, key: Tensor, device: torch.device | str) -> Places:
    """Different places for so many canaries, at random."""
    sizes = torch.tensor([x.numel() if x.is_floating_point() else 0 for x in tree.leaves(like)])
    if not 1 <= count <= int(sizes.sum()):
        raise ConfigError(
            f"privacy.canaries: {count} canaries need a number of the update each, and it has {int(sizes.sum())}. "
            "Use fewer canaries, or 0 for none."
        )
    flat = rng.distinct(rng.fold_name(key, "at"), int(sizes.sum()), count)
    ends = sizes.cumsum(0)
    leaf = torch.searchsorted(ends, flat, right=True)
    sign = (rng.bits(rng.fold_name(key, "sign"), (count,)) % 2 * 2 - 1).float()
    blank = tree.map(lambda x: torch.zeros((), dtype=x.dtype, device=device).expand(x.shape), like)
    return Places(leaf.to(device), (flat - (ends - sizes)[leaf]).to(device), sign.to(device), blank)


def summed(which: Tensor, at: Places, layers: Chain, state: Tree, key: Tensor) -> Total:
    """The sum over these canaries (one that is named twice comes twice), each through the client's side on its own."""
    keys = _keys(which, key.to(which.device))
    if all(type(t).client is Transform.client or t.keeps_zeros for t in layers.transforms):
        return _sparse(which, at, layers, state, keys)
    return _dense(which, at, layers, state, keys)


def _sparse(which: Tensor, at: Places, layers: Chain, state: Tree, keys: Tensor) -> Total:
    """Each canary as an update of one number for each tensor; what comes out is put in its place."""
    small = tree.map(lambda x: x.new_zeros(1), at.blank)
    leaf, amplitude = at.leaf[which], AMPLITUDE * at.sign[which]
    counter = iter(range(len(tree.leaves(small))))
    values = tree.map(lambda x: torch.where(leaf == next(counter), amplitude, 0.0)[:, None].to(x.dtype), small)
    sent = _through(layers, state, layers.init(small)[1], values, keys)
    numbers = {path: (i, x.shape) for i, (path, x) in enumerate(tree.paths(at.blank))}
    flat = dict(tree.paths(sent.value))

    def placed(path: str) -> Tensor:
        x = flat[path]
        if path not in numbers:  # a part that the chain adds of its own
            return tree.weighted_sum(x, sent.weight)
        i, shape = numbers[path]
        mine = leaf == i
        weighted = x[mine, 0] * sent.weight[mine].to(x.dtype)
        whole = torch.zeros(shape.numel(), dtype=x.dtype, device=x.device)
        return whole.index_add_(0, at.at[which[mine]], weighted).reshape(shape)

    paths = iter([path for path, _ in tree.paths(sent.value)])
    return _total(tree.map(lambda _: placed(next(paths)), sent.value), sent.weight)


def _dense(which: Tensor, at: Places, layers: Chain, state: Tree, keys: Tensor) -> Total:
    """Whole updates, some at a time: for layers that write everywhere, as local noise does."""
    memory = layers.init(at.blank)[1]
    each = max(1, DENSE // tree.count(at.blank))
    total = None
    for first in range(0, len(which), each):
        rows = slice(first, first + each)
        sent = _through(layers, state, memory, _whole(which[rows], at), keys[rows])
        part = _total(tree.map(partial(tree.weighted_sum, w=sent.weight), sent.value), sent.weight)
        total = part if total is None else total.merge(part)
    assert total is not None
    return total


def _whole(which: Tensor, at: Places) -> Tree:
    """The updates of these canaries, stacked."""
    counter = iter(range(len(tree.leaves(at.blank))))

    def stacked(x: Tensor) -> Tensor:
        value = x.new_zeros((len(which), x.numel()))
        mine = (at.leaf[which] == next(counter)).nonzero()[:, 0]
        value[mine, at.at[which[mine]]] = (AMPLITUDE * at.sign[which[mine]]).to(x.dtype)
        return value.reshape(len(which), *x.shape)

    return tree.map(stacked, at.blank)  # type: ignore[no-any-return]


def _through(layers: Chain, state: Tree, memory: Tree, values: Tree, keys: Tensor) -> Update:
    """A stack of updates through the client's side, each with weight 1, a key of its own and a fresh memory."""

    def one(value: Tree, key: Tensor) -> Update:
        return layers.client(Update(value, torch.ones((), device=key.device)), state, memory, key)[0]

    sent = vmap(one)(values, keys)
    return Update(sent[0], sent[1])


def _total(value: Tree, weight: Tensor) -> Total:
    return Total(value, weight.sum(), torch.full_like(weight[0], len(weight)))


def _keys(which: Tensor, key: Tensor) -> Tensor:
    """One for every turn of every canary."""
    place = torch.arange(len(which), device=which.device)
    nth = place - torch.searchsorted(which, which)  # `which` is sorted: the how manieth turn of this canary
    found: Tensor = vmap(lambda i, n: rng.fold(rng.fold(key, i), n))(which, nth)
    return found
