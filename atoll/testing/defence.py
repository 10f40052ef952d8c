"""Does a defence withstand as many liars as it says?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.core import Info, Reducer, Update
from atoll.testing.assertions import need
from atoll.tree import Tree

_COHORTS = (7, 11, 15, 23, 47)
_FAR = 1e5
_KEY = rng.key("liars")
_CAUSES = {
    "all in one place": "a mean that nobody is left out of, or trimming that leaves too many in",
    "at different distances": "a rule that only finds liars who agree",
    "one at the mean that the others moved": "distances to all in place of the n - f - 2 nearest (FedEval's Krum)",
    "half of them opposite": "lengths or signs that cancel",
}


def withstands(reducer: Reducer[Any], first_state: Callable[[Tree], Tree]) -> str | None:
    """With every number of liars up to `tolerates` the total stays near the honest updates; None where that is 0."""
    found = [n for n in _COHORTS if reducer.tolerates(n) > 1] or [n for n in _COHORTS if reducer.tolerates(n) > 0]
    for n in (1, *_COHORTS):
        least, most = reducer.tolerates(n), reducer.breaks_at(n)
        what = "breaks no earlier than it tolerates"
        need(
            0 <= least < max(n, 1), "tolerates some of the clients", least, f"0 to {n - 1} of {n}", "a number for any n"
        )
        need(most is None or most > least, what, f"{most} of {n}", f"more than {least}", "an off-by-one in breaks_at")
    if not found:
        return None
    need(bool(reducer.assumes), "says what it assumes", "nothing", "a sentence", "`assumes` was left empty")
    for how, cause in _CAUSES.items():
        for liars in range(1, reducer.tolerates(found[0]) + 1):
            _stays_near(reducer, first_state, found[0], liars, how, cause)
    return "withstands as many liars as it says"


def _stays_near(reducer: Reducer[Any], first_state: Any, n: int, liars: int, how: str, cause: str) -> None:
    value = _attacked(n, liars, how)
    honest = tree.rows(value, slice(liars, None))
    middle = tree.map(lambda x: x.mean(0), honest)
    radius = max(float(tree.norm(tree.sub(tree.rows(honest, i), middle))) for i in range(n - liars))
    ids = torch.arange(n) + 3
    info = Info(ids, torch.ones(n), torch.ones(n), torch.zeros(n))
    total = reducer.finish(reducer.lift(Update(value, torch.ones(n)), info, _KEY), first_state(middle), _KEY)[0]
    away = float(tree.norm(tree.sub(total.mean(), middle)))
    bound = 3 * radius + 3 * float(tree.norm(middle))
    what = f"withstands {liars} of {n} clients that are far away, {how}"
    need(away <= bound, what, f"a total that is {away:.3g} away", f"at most {bound:.3g}", cause)


def _attacked(n: int, liars: int, how: str) -> Tree:
    """Honest updates that are alike; the first so many are replaced, in a direction in which nobody else is."""
    common, own = rng.normal(_KEY, (3, 4)), rng.normal(rng.fold_name(_KEY, "own"), (n, 3, 4))
    w = common + 0.5 * own
    w[:, 2, 3] = 0.0
    b = 0.1 * rng.normal(rng.fold_name(_KEY, "b"), (n,))
    scale = _scales(n, liars, how)
    w[:liars] = 0.0
    w[:liars, 2, 3] = _FAR * scale
    return {"delta": {"w": w}, "buffers": {}, "gradients": b}


def _scales(n: int, liars: int, how: str) -> Tensor:
    scale = torch.ones(liars)
    if how == "at different distances":
        return torch.linspace(1.0, 2.0, liars)
    if how == "half of them opposite":
        scale[1::2] = -1.0
    if how == "one at the mean that the others moved" and liars > 1:
        scale[-1] = (liars - 1) / (n - 1)
    return scale
