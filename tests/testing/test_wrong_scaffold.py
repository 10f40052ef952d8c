"""The mistakes of four published SCAFFOLDs: the kit refuses each of them, and passes the right one in the same call."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pytest
from torch import Tensor

from atoll import rng, tree
from atoll.algorithms.local import descend, gradient, move
from atoll.algorithms.optimizers import EffectiveSteps
from atoll.algorithms.published import scaffold
from atoll.algorithms.scaffold import Scaffold
from atoll.core import Info, Model, Total, Update
from atoll.errors import ConformanceError
from atoll.testing import check_algorithm
from atoll.tree import Tree


def check(builder: Callable[..., object]) -> list[str]:
    """The one call that the right and the wrong ones go through."""
    return check_algorithm(builder, exact=True, alone=True, control="control")


@dataclass(frozen=True)
class StartsAtRandom(Scaffold):
    """c and every c_i start from one random network (NIID-Bench)."""

    def init(self, model: Model, key: Tensor) -> Tree:
        return {**model, "control": self._network()}

    def client_state(self, model: Model) -> Tree:
        return {"control": self._network()}

    def _network(self) -> Tree:
        return self.task.init(rng.key("another network"))["params"]


@dataclass(frozen=True)
class StartsAtTheModel(Scaffold):
    """c and every c_i start from the model itself: another network, as far as controls are concerned."""

    def init(self, model: Model, key: Tensor) -> Tree:
        return {**model, "control": model["params"]}

    def client_state(self, model: Model) -> Tree:
        return {"control": model["params"]}


@dataclass(frozen=True)
class InvertedSign(Scaffold):
    """g + c_i + c."""

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        carry = {**carry, "effective": EffectiveSteps(self.optimizer).add(carry["effective"])}
        g, carry = gradient(self.task, carry, batch)
        g = tree.add(tree.add(g, own["control"]), sent["control"])
        return descend(self.optimizer, carry, g, self.lr)


@dataclass(frozen=True)
class NeverStored(Scaffold):
    """The new c_i is computed, sent, and forgotten (FedML)."""

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        return super().finish(carry, sent, own, info)[0], own


@dataclass(frozen=True)
class ServerStepTimesLr(Scaffold):
    """x += lr * mean(y_i - x) (FedEval)."""

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        good = super().apply(server, total, key)
        return {**move(server, total.mean(), self.server_lr * self.lr), "control": good["control"]}


@dataclass(frozen=True)
class NotScaledBySampling(Scaffold):
    """c += mean(dc), without |S|/N."""

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        return super().apply(server, replace(total, count=total.count * 0 + self.population), key)


@pytest.mark.parametrize(
    ("wrong", "property_that_fails"),
    [
        (StartsAtRandom, "a mirrored problem gives the mirrored model"),
        (StartsAtTheModel, "a mirrored problem gives the mirrored model"),
        (InvertedSign, "learns"),
        (partial(scaffold, profile="pfl-research"), "learns"),  # g + c_i - c: both signs
        (NeverStored, "the server's control is the mean of the clients'"),
        (ServerStepTimesLr, "one client alone is plain SGD"),
        (NotScaledBySampling, "the server's control is the mean of the clients'"),
    ],
)
def test_a_published_mistake_is_refused_by_name(wrong: Callable[..., object], property_that_fails: str) -> None:
    with pytest.raises(ConformanceError) as refused:
        check(wrong)
    assert str(refused.value).startswith(property_that_fails)
    for part in ("found", "expected", "Usual cause"):
        assert part in str(refused.value)


@pytest.mark.slow
def test_the_right_scaffold_passes_the_same_call() -> None:
    passed = check(Scaffold)
    assert "reaches the true optimum" in passed
    assert "reaches the true optimum with 3 of 6 clients a round" in passed
    assert "one client alone is plain SGD" in passed


@pytest.mark.slow
def test_controls_that_are_never_stored_miss_the_optimum_too() -> None:
    """The behaviour alone gives it away, also where nobody names the control."""
    with pytest.raises(ConformanceError, match="reaches the true optimum"):
        check_algorithm(NeverStored, exact=True)
