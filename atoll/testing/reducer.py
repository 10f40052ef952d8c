"""Is a reducer a monoid, and does it reduce?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atoll import rng, tree
from atoll.core import Reducer, Total, Update
from atoll.testing.assertions import need, need_close, need_same, need_shape
from atoll.tree import Tree

_C = 7


def check_reducer(reducer: Reducer) -> list[str]:
    """The names of the checks that a reducer passes, or a ConformanceError that says which one it does not.

    >>> from atoll.reducers import Mean
    >>> check_reducer(Mean())[-1]
    'is the weighted mean'
    """
    return [name for check in CHECKS for name in [check(reducer)] if name]


def pure(reducer: Reducer) -> str:
    """Nothing that came in is changed, and the same comes out twice."""
    updates = _updates()
    before = tree.digest(updates._asdict())
    a, b = _reduced(reducer, updates), _reduced(reducer, updates)
    same = before == tree.digest(updates._asdict())
    need(same, "leaves updates alone", "a change in place", "no change", "sort_ or another operation in place")
    need_same(_tree(a), _tree(b), "gives the same twice", "a draw without a key")
    return "pure"


def keeps_structure(reducer: Reducer) -> str:
    """The total has the parts of one update, and counts the clients."""
    updates = _updates()
    total = _reduced(reducer, updates)
    cause = "a client axis that was not reduced, or a part that was dropped"
    need_shape(total.mean(), tree.rows(updates.value, 0), "the mean has the structure of one update", cause)
    need(float(total.count) == _C, "counts the clients", float(total.count), _C, "a count that is the weight")
    return "the total looks like one update"


def parts_merge(reducer: Reducer) -> str:
    """However clients are grouped, and in whatever order the groups come, the total is the same."""
    updates = _updates()
    truth = _tree(_reduced(reducer, updates))
    lifted = reducer.lift
    a, b, c = (_rows(updates, s) for s in (slice(0, 1), slice(1, 4), slice(4, _C)))
    cause = "a running average with a special first case, or a mean of means"
    for what, merged in (
        ("merging is associative, left to right", lifted(a).merge(lifted(b)).merge(lifted(c))),
        ("merging is associative, right to left", lifted(a).merge(lifted(b).merge(lifted(c)))),
        ("merging is commutative", lifted(c).merge(lifted(a)).merge(lifted(b))),
    ):
        need_close(_tree(reducer.finish(merged)), truth, what, cause)
    return "parts merge in any grouping and order"


def any_order(reducer: Reducer) -> str:
    """A cohort is a set."""
    updates = _updates()
    shuffled = _rows(updates, torch.tensor([3, 0, 6, 2, 5, 1, 4]))
    cause = "a choice by position"
    truth = _tree(_reduced(reducer, updates))
    need_close(_tree(_reduced(reducer, shuffled)), truth, "the order of clients does not matter", cause)
    return "the order of clients does not matter"


def agreement(reducer: Reducer) -> str:
    """If all say the same, that is the answer."""
    updates = _updates()
    one = tree.rows(updates.value, 2)
    alike = Update(tree.map(torch.clone, tree.stack(one, _C)), updates.weight)
    cause = "a sum that is not divided by the weights (FedEval's trimmed mean)"
    need_close(_reduced(reducer, alike).mean(), one, "equal updates give that update", cause)
    alone = _reduced(reducer, _rows(updates, slice(2, 3))).mean()
    need_close(alone, one, "one client gives its own update", "trimming that leaves nobody")
    return "equal updates give that update"


def is_the_weighted_mean(reducer: Reducer) -> str | None:
    """What `spec` calls additive is a sum of w_k u_k over the sum of w_k."""
    if not reducer.spec().additive:
        return None
    updates = _updates()
    share = updates.weight.double() / updates.weight.double().sum()
    by_hand = tree.map(lambda x: (x.double() * share.reshape(-1, *[1] * (x.dim() - 1))).sum(0).float(), updates.value)
    cause = "weights that are ignored; say additive=False in spec() if that is meant"
    need_close(_reduced(reducer, updates).mean(), by_hand, "is the weighted mean", cause)
    weight, wanted = float(_reduced(reducer, updates).weight), float(updates.weight.sum())
    need(abs(weight - wanted) < 1e-4, "sums the weights", weight, wanted, "a normalisation before the end")
    return "is the weighted mean"


CHECKS: tuple[Callable[[Reducer], str | None], ...] = (
    pure,
    keeps_structure,
    parts_merge,
    any_order,
    agreement,
    is_the_weighted_mean,
)


def _updates() -> Update:
    key = rng.key("reducer")
    value = {"delta": {"w": rng.normal(key, (_C, 3, 4))}, "buffers": {}, "gradients": rng.uniform(key, (_C,))}
    return Update(value, torch.tensor([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0]))


def _rows(updates: Update, index: Any) -> Update:
    return Update(tree.rows(updates.value, index), updates.weight[index])


def _reduced(reducer: Reducer, updates: Update) -> Total:
    total: Total = reducer.finish(reducer.lift(updates))
    return total


def _tree(total: Total) -> Tree:
    return {"value": total.value, "weight": total.weight, "count": total.count}
