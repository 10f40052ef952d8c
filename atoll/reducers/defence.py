"""What defences share: nobody, one update for the whole cohort, and how many wrong clients so many allow.

They ignore weights: a liar could claim any. What they need of a stack they take from `Rows`.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from atoll import tree
from atoll.core import Reducer, Stack, StackReducer, Total, Whole
from atoll.errors import ConfigError
from atoll.reducers.rows import Rows
from atoll.tree import Tree

Byzantine = Whole
Above0 = Annotated[float, Field(gt=0)]  # no schedules: nobody resolves those of a reducer
AtLeast0 = Annotated[float, Field(ge=0)]


class Defence(StackReducer):
    """Somebody came: `aggregate` says what becomes of them. Of nobody it is zeros that weigh nothing."""

    def finish(self, partial: Stack, state: Tree, key: Tensor) -> tuple[Total, Tree, Tree]:
        if not len(partial):
            like = tree.map(lambda x: x.new_zeros(x.shape[1:]), partial.updates.value)
            return Total.zero(like), state, {}
        value, state, said = self.aggregate(partial, state, key)
        weight = partial.updates.weight
        return Total(value, weight.new_ones(()), weight.new_full((), float(len(partial)))), state, said

    @abstractmethod
    def aggregate(self, stack: Stack, state: Tree, key: Tensor) -> tuple[Tree, Tree, Tree]:
        """One update in place of all, the new state, and diagnostics."""


class Weighing(Defence):
    """The aggregate is a combination of the updates: `weigh` says how much of each, and why."""

    def aggregate(self, stack: Stack, state: Tree, key: Tensor) -> tuple[Tree, Tree, Tree]:
        rows = Rows.of(stack)
        weights, said = self.weigh(rows, key)
        return rows.combined(weights), state, {"clients": rows.ids, "weights": weights.float(), **said}

    @abstractmethod
    def weigh(self, rows: Rows, key: Tensor) -> tuple[Tensor, Tree]:
        """(C,) weights in the order of ids, and diagnostics."""


class Sized:
    """For those who are told how many clients may be wrong, which must not be too many for the cohort."""

    needs: ClassVar[str]  # in words: what n must be for a number of wrong clients

    byzantine: int

    def most(self, clients: int) -> int:
        """The largest number of wrong clients that so many allow."""
        return (clients - 1) // 2

    def allowed(self, clients: int) -> int:
        """What is asked for; or less, where fewer came."""
        return max(0, min(self.byzantine, self.most(clients)))

    def tolerates(self, clients: int) -> int:
        return self.allowed(clients)

    def check_cohort(self, clients: int) -> None:
        most = self.most(clients)
        if self.byzantine > most:
            advice = f"Use byzantine = {most} or less" if most > 0 else "Use reducer = 'median'"
            raise ConfigError(
                f"reducer.byzantine: {self.byzantine} of {clients} clients are too many: {self.needs}. "
                f"{advice}, or a larger cohort."
            )


@dataclass(frozen=True)
class Around(Defence):
    """A reducer around another: it changes the stack, and the inner one aggregates what it made."""

    inner: Reducer[Any]

    def init(self, like: Tree) -> Tree:
        return self.inner.init(like)

    def needs_root(self) -> bool:
        return self.inner.needs_root()

    def finish(self, partial: Stack, state: Tree, key: Tensor) -> tuple[Total, Tree, Tree]:
        if not len(partial):
            like = tree.map(lambda x: x.new_zeros(x.shape[1:]), partial.updates.value)
            return self.inner.finish(self.inner.zero(like), state, key)
        changed, factors, said = self.changed(partial, key)
        lifted = self.inner.lift_scaled(changed.updates, factors, changed.info, key)
        total, state, inner = self.inner.finish(lifted, state, key)
        weight, count = total.weight, partial.updates.weight.new_full((), float(len(partial)))
        return Total(total.value, weight, count), state, {**inner, **said}

    def aggregate(self, stack: Stack, state: Tree, key: Tensor) -> tuple[Tree, Tree, Tree]:
        total, state, said = self.finish(stack, state, key)
        return total.mean(), state, said

    @abstractmethod
    def changed(self, stack: Stack, key: Tensor) -> tuple[Stack, Tree, Tree]:
        """What the inner reducer is given, what each tensor of it is still to be multiplied by, and diagnostics."""


def restacked(stack: Stack, value: Tree, rows: Tensor | None = None) -> Stack:
    """Other updates in place of these, all of weight 1; `rows` says whose info each has, if they are not as many."""
    info = stack.info
    if rows is not None:
        info = type(info)(*(x[rows.to(x.device)] for x in info))
    weight = torch.ones(len(info.id), device=stack.updates.weight.device)
    return Stack(stack.updates._replace(value=value, weight=weight), info)


def check_inner(inner: Reducer[Any], clients: int) -> None:
    """What the inner reducer says of so many, where it stands in a file."""
    try:
        inner.check_cohort(clients)
    except ConfigError as e:
        raise ConfigError([p.replace("reducer.", "reducer.inner.", 1) for p in e.problems]) from e
