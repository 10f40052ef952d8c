"""What every mechanism on the sum does besides its noise."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from atoll import tree
from atoll.core import ServerSide, SetByBind, Spec, Total, Transform
from atoll.tree import Tree


@dataclass(frozen=True)
class NoisySum(Transform):
    """A noisy sum is divided by how many clients were to come, since how many came is private, too.

    For the same reason a round to which nobody came releases its noise like any other. Where no number is expected (an
    availability trace says who comes) the clients that were invited count, whether or not they could be used.
    """

    allowed_after_noise: ClassVar[bool] = True  # `bind` refuses, and knows why

    expected: Annotated[float | None, SetByBind(), ServerSide()] = field(default=None, kw_only=True, repr=False)
    fixed: Annotated[bool, SetByBind(), ServerSide()] = field(default=False, kw_only=True, repr=False)

    def init(self, like: Tree) -> tuple[Tree, Tree]:
        return {"signal": torch.zeros((), dtype=torch.float64, device=tree.device(like))}, {}

    def releases(self, invited: int) -> bool:
        return self.fixed and (self.expected is not None or invited > 0)

    def diagnostics(self, state: Tree) -> Tree:
        return {"signal": state["signal"]} if self.fixed else {}

    def released(self, total: Total) -> Total:
        """The sum over the clients that were to come: a fixed denominator."""
        clients = self.expected if self.expected is not None else total.invited
        if not self.fixed or not clients:
            return total
        number = torch.full_like(total.weight, clients)
        return replace(total, weight=number, count=number)


def fixed_denominator(spec: Spec) -> dict[str, Any]:
    """The fields of a bound mechanism on a sum in which every client counts the same."""
    return {"expected": spec.expected, "fixed": spec.equal_weights and spec.additive}


def signal_norm(value: Tree) -> Tensor:
    """How long the sum is before noise."""
    parts = [x if x.is_floating_point() else x.double() for x in tree.leaves(value)]
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(parts, 2, torch.float64)))  # type: ignore[no-any-return]
