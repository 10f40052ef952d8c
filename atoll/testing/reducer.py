"""Is a reducer a monoid, and does it reduce?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atoll import rng, tree
from atoll.core import Info, Reducer, Total, Update
from atoll.testing.assertions import need, need_close, need_same, need_shape
from atoll.testing.defence import withstands
from atoll.tree import Tree

_C = 7
_KEY = rng.key("reduce")


def check_reducer(reducer: Reducer[Any]) -> list[str]:
    """The names of the checks that a reducer passes, or a ConformanceError that says which one it does not.

    >>> from atoll.reducers import Mean
    >>> check_reducer(Mean())[-1]
    'is the weighted mean'
    """
    return [name for check in CHECKS for name in [check(reducer)] if name]


def pure(reducer: Reducer[Any]) -> str:
    """Nothing that came in is changed, and the same comes out twice."""
    updates = _updates()
    before = tree.digest(updates._asdict())
    a, b = _reduced(reducer, updates), _reduced(reducer, updates)
    same = before == tree.digest(updates._asdict())
    need(same, "leaves updates alone", "a change in place", "no change", "sort_ or another operation in place")
    need_same(_tree(a), _tree(b), "gives the same twice", "a draw without a key")
    return "pure"


def keeps_structure(reducer: Reducer[Any]) -> str:
    """The total has the parts of one update, and counts the clients."""
    updates = _updates()
    total = _reduced(reducer, updates)
    cause = "a client axis that was not reduced, or a part that was dropped"
    need_shape(total.mean(), tree.rows(updates.value, 0), "the mean has the structure of one update", cause)
    need(float(total.count) == _C, "counts the clients", float(total.count), _C, "a count that is the weight")
    return "the total looks like one update"


def parts_merge(reducer: Reducer[Any]) -> str:
    """However clients are grouped, and in whatever order the groups come, the total is the same."""
    updates = _updates()
    truth = _tree(_reduced(reducer, updates))
    a, b, c = (_lifted(reducer, _rows(updates, s), s) for s in (slice(0, 1), slice(1, 4), slice(4, _C)))
    merge, zero = reducer.merge, reducer.zero(tree.rows(updates.value, 0))
    cause = "a running average with a special first case, or a mean of means"
    for what, merged in (
        ("merging is associative, left to right", merge(merge(a, b), c)),
        ("merging is associative, right to left", merge(a, merge(b, c))),
        ("merging is commutative", merge(merge(c, a), b)),
        ("zero is the identity, from the left", merge(zero, merge(merge(a, b), c))),
        ("zero is the identity, from the right", merge(merge(merge(a, b), c), zero)),
    ):
        need_close(_tree(_finished(reducer, merged)), truth, what, cause)
    return "parts merge in any grouping and order, and zero is their identity"


def of_nobody(reducer: Reducer[Any]) -> str:
    """The total over nobody weighs nothing, and has the parts of one update."""
    like = tree.rows(_updates().value, 0)
    total = _finished(reducer, reducer.zero(like))
    need_shape(total.value, like, "the total over nobody has the structure of one update", "a special case for nobody")
    found = (float(total.weight), float(total.count))
    need(found == (0.0, 0.0), "nobody weighs nothing", found, (0.0, 0.0), "a weight that is always 1")
    return "nobody weighs nothing"


def factors(reducer: Reducer[Any]) -> str:
    """Updates that are still to be multiplied give what the products give."""
    updates, info = _updates(), _info(slice(0, _C))
    row = torch.linspace(0.1, 1.0, _C)
    scales = tree.map(lambda _: row, updates.value)
    truth = _finished(reducer, reducer.lift(updates.scaled(scales), info, _KEY))
    passing = _finished(reducer, reducer.lift_scaled(updates, scales, info, _KEY))
    cause = "factors that are left out, or taken for weights"
    need_close(_tree(passing), _tree(truth), "factors are multiplied in passing", cause, 1e-5)
    return "factors are multiplied in passing"


def state_is_kept(reducer: Reducer[Any]) -> str:
    """State and diagnostics are trees; the state keeps its structure, and the same state gives the same."""
    updates = _updates()
    first = first_state(reducer, tree.rows(updates.value, 0))
    partial = reducer.lift(updates, _info(slice(0, _C)), _KEY)
    (one, new, said), (two, again, _) = (reducer.finish(partial, first, _KEY) for _ in range(2))
    need_shape(new, first, "the state keeps its structure", "a key that is added on the way")
    need_same({"state": new, **_tree(one)}, {"state": again, **_tree(two)}, "the same state gives the same", "a draw")
    wrong = [k for k, v in said.items() if not isinstance(v, torch.Tensor | dict)]
    need(not wrong, "diagnostics are a tree of tensors", wrong, "tensors", "a list or a number; use torch.tensor")
    return "state is a tree, and diagnostics are"


def any_order(reducer: Reducer[Any]) -> str:
    """A cohort is a set."""
    updates = _updates()
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    shuffled = _rows(updates, order)
    cause = "a choice by position"
    truth = _tree(_reduced(reducer, updates))
    need_close(_tree(_reduced(reducer, shuffled, order)), truth, "the order of clients does not matter", cause)
    return "the order of clients does not matter"


def agreement(reducer: Reducer[Any]) -> str:
    """If all say the same, that is the answer."""
    updates = _updates()
    one = tree.rows(updates.value, 2)
    alike = Update(tree.map(torch.clone, tree.stack(one, _C)), updates.weight)
    cause = "a sum that is not divided by the weights (FedEval's trimmed mean)"
    need_close(_reduced(reducer, alike).mean(), one, "equal updates give that update", cause)
    alone = _reduced(reducer, _rows(updates, slice(2, 3))).mean()
    need_close(alone, one, "one client gives its own update", "trimming that leaves nobody")
    return "equal updates give that update"


def is_the_weighted_mean(reducer: Reducer[Any]) -> str | None:
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


def declares_when_it_holds(reducer: Reducer[Any]) -> str | None:
    """A defence says what it assumes, and holds against as many liars as it says it tolerates."""
    return withstands(reducer, lambda root: first_state(reducer, root))


CHECKS: tuple[Callable[[Reducer[Any]], str | None], ...] = (
    pure,
    keeps_structure,
    parts_merge,
    of_nobody,
    factors,
    state_is_kept,
    any_order,
    agreement,
    is_the_weighted_mean,
    declares_when_it_holds,
)


def _updates() -> Update:
    key = rng.key("reducer")
    value = {"delta": {"w": rng.normal(key, (_C, 3, 4))}, "buffers": {}, "gradients": rng.uniform(key, (_C,))}
    return Update(value, torch.tensor([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0]))


def _rows(updates: Update, index: Any) -> Update:
    return Update(tree.rows(updates.value, index), updates.weight[index])


def _info(index: Any) -> Info:
    ids = torch.tensor([11, 4, 8, 2, 30, 7, 5])[index]
    return Info(ids, ids.float(), torch.ones(len(ids)), torch.zeros(len(ids)))


def _lifted(reducer: Reducer[Any], updates: Update, index: Any) -> Any:
    return reducer.lift(updates, _info(index), _KEY)


def _reduced(reducer: Reducer[Any], updates: Update, index: Any = slice(0, _C)) -> Total:
    """The total of the updates at these places of the cohort."""
    index = index if len(updates.weight) == _C else slice(0, len(updates.weight))
    return _finished(reducer, _lifted(reducer, updates, index))


def _finished(reducer: Reducer[Any], partial: Any) -> Total:
    return reducer.finish(partial, first_state(reducer, tree.rows(_updates().value, 2)), _KEY)[0]


def first_state(reducer: Reducer[Any], root: Tree) -> Tree:
    """The state before the first round; where it has an update of the server's own, that is `root`."""
    state = reducer.init(tree.zeros_like(root))
    return {**state, "root": root} if reducer.needs_root() else state


def _tree(total: Total) -> Tree:
    return {"value": total.value, "weight": total.weight, "count": total.count}
