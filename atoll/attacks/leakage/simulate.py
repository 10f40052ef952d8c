"""The client's own program on examples that an attacker makes up: differentiable, for one client, stacked by vmap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Algorithm, Info, functional, inject
from atoll.tree import Tree

PARTS = ("delta", "gradient")  # the part of an update that is shaped like the model's parameters
Work = dict[str, Tensor]  # what the attacker knows of a client's work: plan, count, steps, examples


@dataclass(frozen=True, eq=False)
class Simulation:
    """`start`, every `step` and `finish` of the algorithm itself, from the broadcast model.

    With one step of FedSGD this is the gradient; with E epochs of FedAvg it is the change of the model, unrolled
    (Geiping et al., 2020; Dimitrov et al., 2022). Transforms are not part of it: what they do to the victim's update is
    in what the attacker sees, not in what it simulates.
    """

    algorithm: Algorithm
    settings: Tree  # of the round, for the algorithm
    sent: Tree
    own: Tree  # what a client keeps, before it ever took part
    part: str  # of the update: one of PARTS
    alike: bool = True  # do all clients take the same number of steps?
    key: Tensor = field(default_factory=lambda: torch.zeros(2, dtype=torch.int64))  # dropout's is the client's secret

    def update(self, x: Tensor, y: Tensor, work: Work) -> Tree:
        """What is attacked of what one client would send."""
        found: Tree = self.whole(x, y, work)[self.part]
        return found

    def whole(self, x: Tensor, y: Tensor, work: Work) -> Tree:
        """What one client would send for these examples, (n, *inputs) and labels (n,) or chances of labels (n, K)."""
        algorithm = inject(self.algorithm, self.settings)
        carry = algorithm.start(self.sent, self.own)
        wide = torch.arange(work["plan"].shape[-1], device=x.device)
        for places, count in zip(work["plan"].unbind(0), work["count"].unbind(0), strict=True):
            batch = {"x": x[places], "y": y[places], "mask": (wide < count).float(), "key": self.key.to(x.device)}
            new = algorithm.step(carry, self.sent, self.own, batch)
            carry = new if self.alike else tree.where(count > 0, new, carry)
        info = Info(torch.zeros_like(work["steps"]), work["examples"], work["steps"].float(), work["examples"] * 0)
        return algorithm.finish(carry, self.sent, self.own, info)[0].value

    def mean(self, x: Tensor, y: Tensor, work: Work, weights: Tensor) -> Tree:
        """The weighted mean of m clients' updates, axes (m, ...): all that a sum shows of them."""
        if x.shape[0] == 1:
            return self.update(x[0], y[0], {name: column[0] for name, column in work.items()})
        each = torch.func.vmap(self.update)(x, y, work)
        shares = weights / weights.sum()
        return tree.map(lambda leaf: torch.tensordot(shares.to(leaf.dtype), leaf, dims=1), each)  # type: ignore[no-any-return]


def stacked(f: Callable[..., Tensor]) -> Callable[..., tuple[tuple[Tensor, ...], Tensor]]:
    """The gradient by the first argument (a tuple) and the value of `f` of one group, for a stack of groups.

    Groups do not meet, so the gradient of the sum is every group's own.
    """

    def both(free: tuple[Tensor, ...], *rest: object) -> tuple[tuple[Tensor, ...], Tensor]:
        leaves = tuple(x.detach().requires_grad_() for x in free)
        with functional(), torch.enable_grad():
            values = torch.func.vmap(f)(leaves, *rest)
            gradient = torch.autograd.grad(values.sum(), leaves, materialize_grads=True)
        return gradient, values.detach()

    return both
