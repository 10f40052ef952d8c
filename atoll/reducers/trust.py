"""Defences that trust clients more or less: by what they sent before, or by what the server learnt on its own data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Stack
from atoll.reducers.defence import Above0, AtLeast0, Byzantine, Defence, Sized
from atoll.reducers.rows import Rows
from atoll.tree import Tree

_SURE = 0.99  # the trust that the logit of FoolsGold takes for 1


@dataclass(frozen=True)
class FoolsGold(Defence):
    """Clients whose updates of all rounds point alike count less: sybils do (Fung et al., 2020).

    The limitations of federated learning in sybil settings, RAID 2020: cosines of the sums of all updates of a client,
    pardoning, 1 - the largest cosine, its logit + 0.5, cut to [0, 1]. `layers`: only tensors whose path has one of
    these words, such as the last layer. If all are alike, nobody can be told apart, and all count the same.
    """

    assumes: ClassVar[str] = "liars are alike and honest clients are not; one liar that is like nobody breaks it"

    population: int
    layers: list[str] | None = None

    def init(self, like: Tree) -> Tree:
        return {"history": self._compared(like, lambda x: x.new_zeros((self.population, *x.shape)))}

    def aggregate(self, stack: Stack, state: Tree, key: Tensor) -> tuple[Tree, Tree, Tree]:
        rows, ids = Rows.of(stack), stack.info.id
        sent = self._compared(stack.updates.value, lambda x: x)
        history = tree.map(lambda h, x: h.index_add(0, ids.to(h.device), x.to(h.dtype)), state["history"], sent)
        seen = Rows(tree.map(lambda h: h[ids.to(h.device)], history), rows.order, rows.ids)
        trust = foolsgold_trust(_cosines(seen))
        weights = trust / trust.sum() if float(trust.sum()) > 0 else torch.full_like(trust, 1.0 / len(trust))
        said = {"clients": rows.ids, "weights": weights.float(), "scores": trust.float()}
        return rows.combined(weights), {"history": history}, said

    def _compared(self, value: Tree, f: Callable[[Tensor], Tensor]) -> Tree:
        """By path, the tensors that are looked at."""
        named = [(path, x) for path, x in tree.paths(value) if x.is_floating_point()]
        return {p: f(x) for p, x in named if self.layers is None or any(word in p for word in self.layers)}


def _cosines(rows: Rows) -> Tensor:
    lengths = rows.norms.clamp(min=1e-300)
    return rows.gram / lengths[:, None] / lengths[None, :]


def foolsgold_trust(cosines: Tensor) -> Tensor:
    """(C, C) cosines to (C,) numbers from 0, for a sybil, to 1."""
    if len(cosines) < 2:
        return torch.ones(len(cosines), dtype=torch.float64)
    others = cosines.clone().fill_diagonal_(-1.0)
    highest = others.amax(1)
    pardon = (highest[:, None] / highest[None, :]).where(highest[None, :] > highest[:, None], torch.ones(()))
    pardon = pardon.where(highest[None, :] > 0, torch.ones(()))
    trust = (1.0 - (others * pardon).amax(1)).clamp(0.0, 1.0)
    if float(trust.max()) <= 1e-9:  # but for rounding, all say the same
        return torch.zeros_like(trust)
    trust = (trust / trust.max()).clamp(max=_SURE)
    return (torch.logit(trust) + 0.5).clamp(0.0, 1.0)


class Rooted(Defence):
    """Its state has the server's own update under "root", put there by the round before it aggregates."""

    def init(self, like: Tree) -> Tree:
        return {"root": tree.zeros_like(like)}

    def needs_root(self) -> bool:
        return True


@dataclass(frozen=True)
class FLTrust(Rooted):
    """Updates count by their cosine to the server's own, 0 if it is negative, and have its length (Cao et al., 2021).

    sum of ReLU(cos(x_i, x_0)) |x_0| / |x_i| x_i over the sum of ReLU(cos(x_i, x_0)). FLTrust: Byzantine-robust
    federated learning via trust bootstrapping, NDSS 2021. x_0 is learnt on `server.root`, data of the server.
    """

    assumes: ClassVar[str] = "the root data are like the clients'; the total is never longer than the server's update"

    def aggregate(self, stack: Stack, state: Tree, key: Tensor) -> tuple[Tree, Tree, Tree]:
        rows, root = Rows.of(stack), state["root"]
        length = tree.dot(root, root).cpu().sqrt()
        cosines = rows.products_with(root) / (rows.norms * length).clamp(min=1e-300)
        trust = cosines.clamp(min=0)
        weights = trust * length / rows.norms.clamp(min=1e-300) / trust.sum().clamp(min=1e-300)
        said = {"clients": rows.ids, "weights": weights.float(), "scores": cosines.float()}
        return rows.combined(weights), state, said

    def breaks_at(self, clients: int) -> None:
        return None


@dataclass(frozen=True)
class Zeno(Sized, Rooted):
    """The mean of the n - f updates of the best score lr <x_0, x_i> - rho |x_i|^2, with x_0 the server's own update.

    What a step along x_i would gain on the server's data, to first order, less a penalty for its length (Xie et al.,
    2019, Zeno; 2020, Zeno++, which has this score). f = `byzantine`, which may be more than half.
    """

    assumes: ClassVar[str] = "at most `byzantine` clients lie, and the root data are honest; one more breaks it"
    needs: ClassVar[str] = "Zeno needs byzantine < n"

    byzantine: Byzantine = 1
    lr: Above0 = 1.0
    rho: AtLeast0 = 5e-4

    def most(self, clients: int) -> int:
        return clients - 1

    def aggregate(self, stack: Stack, state: Tree, key: Tensor) -> tuple[Tree, Tree, Tree]:
        rows = Rows.of(stack)
        scores = self.lr * rows.products_with(state["root"]) - self.rho * rows.norms**2
        count = len(rows) - self.allowed(len(rows))
        chosen = scores.argsort(stable=True, descending=True)[:count].sort().values
        weights = torch.zeros_like(scores)
        weights[chosen] = 1.0 / count
        said = {"clients": rows.ids, "weights": weights.float(), "scores": scores.float(), "chosen": rows.ids[chosen]}
        return rows.combined(weights), state, said
