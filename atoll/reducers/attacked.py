"""A reducer among whose clients some mean harm: their updates are replaced before it sees them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.core import AdversaryView, Attack, Info, Reducer, Spec, Stack, Total, Update, sees_all
from atoll.reducers.around import ReducerAround
from atoll.tree import Tree

NAME = "attack"  # of its diagnostics
_OF_THE_ROUND = ("root", "plan")  # what rounds put into the state of a reducer for it to read
_KEPT = "buffers"  # statistics of a model: the attackers send what they measured


class Bounds(NamedTuple):
    """What the server does not let an update exceed; None: nothing."""

    l2: float | None = None
    l1: float | None = None


class ResidueEncoding(NamedTuple):
    """How real numbers travel in a secure sum: as residues of whole numbers of steps, none beyond `most` steps."""

    step: float
    modulus: float
    most: float

    def real(self, residues: Tensor) -> Tensor:
        """What they stand for."""
        half = self.modulus / 2
        return (torch.remainder(residues + half, self.modulus) - half) * self.step

    def residues(self, rows: Tensor) -> Tensor:
        """To the nearest step, each number cut to the range that one client has: beyond it the sum would wrap."""
        steps = torch.nan_to_num(rows.double() / self.step).clamp(-self.most, self.most)
        return torch.remainder(torch.round(steps).clamp(-math.floor(self.most), math.floor(self.most)), self.modulus)


@dataclass(frozen=True, eq=False)
class Attacked(ReducerAround[Stack]):
    """Another reducer, given what attackers send in place of what they trained.

    All updates are kept until `finish`. The attackers stand behind the client's side of every transform: what they
    craft arrives as it is, cut only to the bounds that the chain promises, which a server can enforce. What is not
    finite is left out before the inner reducer sees it, as any server would. Statistics (buffers) and weights stay as
    trained. Where residues travel, attackers craft real numbers and encode them: nobody sees a single update, so that
    only the range of the encoding holds them. The state is {"inner", "attack", "round"}; whoever runs the round says
    which it is.
    """

    inner: Reducer[Any]
    attack: Attack
    attackers: Tensor  # (N,) is each client one?
    bounds: Bounds = Bounds()
    encoding: ResidueEncoding | None = None  # None: updates travel as they are

    def spec(self) -> Spec:
        return self.inner.spec()

    def init(self, like: Tree) -> Tree:
        size = sum(x.numel() for x in _crafted_leaves(like))
        state = tree.to(self.attack.init(size), tree.device(like))
        return {"inner": self.inner.init(like), "attack": state, "round": torch.zeros((), dtype=torch.int64)}

    def zero(self, like: Tree) -> Stack:
        return Stack.zero(like)

    def lift(self, updates: Update, info: Info, key: Tensor) -> Stack:
        return Stack(
            Update(tree.map(torch.clone, updates.value), updates.weight.clone()), Info(*(x.clone() for x in info))
        )

    def merge(self, a: Stack, b: Stack) -> Stack:
        return a.merge(b)

    def finish(self, partial: Stack, state: Tree, key: Tensor) -> tuple[Total, Tree, Tree]:
        partial = _by_client(partial)
        attacks = self.attackers[partial.info.id.cpu()].to(partial.info.id.device)
        kept, active = state["attack"], self.attack.active(int(state["round"])) and bool(attacks.any())
        ids = lost = partial.info.id[:0]
        if active:
            ids = partial.info.id[attacks]
            partial, kept = self._with_attack(partial, attacks, state, rng.fold_name(key, NAME))
            partial, lost = _only_finite(partial, ids)
        total, inner, said = _reduced(self.inner, partial, self._inner_state(state), key)
        if len(partial) and bool(total.weight > 0):
            kept = self.attack.observe(self._moved(total, partial), kept)
        done = {"attackers": ids, **({"not_finite": lost} if len(lost) else {})}
        return total, {"inner": inner, "attack": kept, "round": state["round"]}, {**said, NAME: done}

    def _inner_state(self, state: Tree) -> Tree:
        """The inner reducer's, with what the round has put there for it: the server's own update, who stays."""
        return {**state["inner"], **{name: state[name] for name in _OF_THE_ROUND if name in state}}

    def _moved(self, total: Total, partial: Stack) -> Tensor:
        """The aggregate as one row, (D,), of what is crafted: a sum of residues is read before it is divided."""
        if self.encoding is None:
            return _moved(total.mean(), partial)
        mean = tree.map(lambda x: self.encoding.real(x.double()) / total.weight, total.value)  # type: ignore[union-attr]
        return _moved(mean, partial)

    def _with_attack(self, partial: Stack, attacks: Tensor, state: Tree, key: Tensor) -> tuple[Stack, Tree]:
        """The stack with crafted rows in it, and what the attackers keep."""
        flat, places = _flat(partial.updates.value), attacks.nonzero()[:, 0]
        flat = flat if self.encoding is None else self.encoding.real(flat)
        honest = flat[~attacks] if sees_all(self.attack.knows) else flat[:0]

        def reduce(rows: Tensor) -> Tensor:
            trial, _ = _only_finite(_replaced(partial, places, self._sent(rows)), partial.info.id[places])
            return self._moved(_reduced(self.inner, trial, self._inner_state(state), key)[0], partial)

        known = reduce if self.attack.knows == "defence" else None
        seen = AdversaryView(partial.info.id[places], flat[places], honest, len(partial), known)
        rows, kept = self.attack.craft(seen, state["attack"], key)
        return _replaced(partial, places, self._sent(rows)), kept

    def _sent(self, rows: Tensor) -> Tensor:
        """What arrives of crafted rows."""
        return _cut(rows, self.bounds) if self.encoding is None else self.encoding.residues(rows)


def _by_client(partial: Stack) -> Stack:
    """Rows by client id: whatever order an engine finished them in, the attackers see the same."""
    order = torch.argsort(partial.info.id, stable=True)
    if len(order) < 2 or bool((order[1:] > order[:-1]).all()):
        return partial
    value = tree.rows(partial.updates.value, order) if tree.leaves(partial.updates.value) else partial.updates.value
    return Stack(Update(value, partial.updates.weight[order]), Info(*(x[order] for x in partial.info)))


def _reduced(inner: Reducer[Any], stack: Stack, state: Tree, key: Tensor) -> tuple[Total, Tree, Tree]:
    like = tree.map(lambda x: x.new_zeros(x.shape[1:]), stack.updates.value)
    lifted = inner.lift(stack.updates, stack.info, key) if len(stack) else inner.zero(like)
    return inner.finish(lifted, state, key)


def _replaced(stack: Stack, places: Tensor, rows: Tensor) -> Stack:
    """The same with these rows of numbers (M, D) in these places."""
    at = 0

    def written(x: Tensor) -> Tensor:
        nonlocal at
        if not x.is_floating_point():
            return x
        numel = x[0].numel()
        at += numel
        part = rows[:, at - numel : at].reshape(len(rows), *x.shape[1:])
        return x.index_copy(0, places, part.to(x.dtype))

    value = {k: v if k == _KEPT else tree.map(written, v) for k, v in stack.updates.value.items()}
    return Stack(stack.updates._replace(value=value), stack.info)


def _only_finite(stack: Stack, attackers: Tensor) -> tuple[Stack, Tensor]:
    """The stack without what these made up that is not finite, and who made it."""
    places = torch.isin(stack.info.id, attackers).nonzero()[:, 0]
    finite = torch.ones(len(places), dtype=torch.bool, device=places.device)
    for x in _crafted_leaves(stack.updates.value):
        finite &= x[places].reshape(len(places), -1).isfinite().all(1)
    if bool(finite.all()):
        return stack, attackers[:0]
    if len(places) == len(stack) and not bool(finite.any()):  # nobody is left: what they made up moves nothing
        size = sum(x[0].numel() for x in _crafted_leaves(stack.updates.value))
        return _replaced(stack, places, torch.zeros(len(places), size, device=places.device)), attackers
    stays = torch.ones(len(stack), dtype=torch.bool, device=places.device).index_fill(0, places[~finite], False)
    left = Update(tree.rows(stack.updates.value, stays), stack.updates.weight[stays])
    return Stack(left, Info(*(x[stays] for x in stack.info))), stack.info.id[places[~finite]]


def _crafted_leaves(value: Tree) -> list[Tensor]:
    """The tensors that attackers make up: all but statistics and whole numbers."""
    return [x for x in tree.leaves(tree.without(value, (_KEPT,))) if x.is_floating_point()]


def _flat(value: Tree) -> Tensor:
    """A stack of updates as rows of numbers, (C, D)."""
    leaves = _crafted_leaves(value)
    return torch.cat([x.reshape(len(x), -1) for x in leaves], 1) if leaves else torch.zeros(1, 0)


def _moved(mean: Tree, partial: Stack) -> Tensor:
    """The aggregate as one row, (D,), of what is crafted in the stack: a mean of whole numbers may be none."""
    sent, mean = (tree.without(x, (_KEPT,)) for x in (partial.updates.value, mean))
    pairs = zip(tree.leaves(sent), tree.leaves(mean), strict=True)
    return torch.cat([one.reshape(-1) for stacked, one in pairs if stacked.is_floating_point()])


def _cut(rows: Tensor, bounds: Bounds) -> Tensor:
    """Rows that are too long, scaled to the bound."""
    for bound, p in ((bounds.l2, 2), (bounds.l1, 1)):
        if bound is not None:
            lengths = torch.linalg.vector_norm(rows.double(), p, dim=1, keepdim=True)
            rows = rows * (bound / lengths.clamp(min=1e-30)).clamp(max=1.0).to(rows.dtype)
    return rows
