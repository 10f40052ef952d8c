"""One round of two runs: the first thing that is not the same, in the order in which a round happens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from atoll import tree
from atoll.analysis.diff.gaps import EPSILON, TensorGap, gaps, same
from atoll.analysis.diff.recording_engine import Seen
from atoll.tree import Tree

Rows = Tree  # the columns of the training data


@dataclass(frozen=True)
class First:
    """Where a round parts: what went in otherwise, and the first client whose update came out otherwise."""

    reasons: tuple[str, ...]  # settings, cohort, what was sent, a client's examples or state
    client: int | None  # its id
    tensors: tuple[TensorGap, ...]  # of its update; of the server's model where no client's differs
    clients: int  # how many clients' updates differ
    of: int  # clients that both runs have in the round

    @property
    def noise(self) -> bool:
        """Is it all no more than float noise, from equal inputs?"""
        return not self.reasons and all(gap.noise for gap in self.tensors)


def first(
    a: Seen | None, b: Seen | None, columns: tuple[Rows, Rows], servers: tuple[Tree, Tree], epsilon: float = EPSILON
) -> First:
    """Compare what both saw of a round; `servers` are the models after it."""
    if a is None or b is None:
        who = "nobody came" if a is None and b is None else f"nobody came in {'A' if a is None else 'B'} alone"
        return First((f"cohort: {who}",), None, tuple(gaps(*servers, epsilon)), 0, 0)
    reasons = list(_inputs(a, b, epsilon))
    together = _together(a, b)
    differ = [(c, i, j) for c, i, j in together if _update_gaps(a, b, i, j, epsilon)]
    if not differ:
        return First(tuple(reasons), None, tuple(gaps(*servers, epsilon)), 0, len(together))
    client, i, j = differ[0]
    reasons += _own(a, b, i, j, client, columns, epsilon)
    return First(tuple(reasons), client, tuple(_update_gaps(a, b, i, j, epsilon)), len(differ), len(together))


def _inputs(a: Seen, b: Seen, epsilon: float) -> Iterator[str]:
    """What went into the round for everybody."""
    x, y = dict(tree.paths(a.settings)), dict(tree.paths(b.settings))
    for path in dict.fromkeys([*x, *y]):
        if path not in x or path not in y:
            yield f"setting {_dotted(path)}: only in {'A' if path in x else 'B'}"
        elif not same(x[path], y[path]):
            yield f"setting {_dotted(path)}: {_number(x[path])} in A, {_number(y[path])} in B"
    ids = a.cohort.id.tolist(), b.cohort.id.tolist()
    if ids[0] != ids[1]:
        own = [sorted(set(one) - set(other)) for one, other in (ids, ids[::-1])]
        what = f"only in A {own[0][:8]}, only in B {own[1][:8]}" if any(own) else "the same clients in another order"
        yield f"cohort: {what}"
    if a.per_client == b.per_client and (not a.per_client or ids[0] == ids[1]):
        yield from (f"sent, {gap}" for gap in gaps(a.sent, b.sent, epsilon))


def _own(a: Seen, b: Seen, i: int, j: int, client: int, columns: tuple[Rows, Rows], epsilon: float) -> Iterator[str]:
    """What went into one client's work."""
    plans = [seen.cohort.plan[p][_real(seen, p)] for seen, p in ((a, i), (b, j))]
    counts = [seen.cohort.count[p][seen.cohort.count[p] > 0] for seen, p in ((a, i), (b, j))]
    if not same(plans[0], plans[1]) or not same(counts[0], counts[1]):
        held = [len(set(plan.tolist())) for plan in plans]
        yield f"client {client}'s examples: other rows, or another order ({held[0]:,} in A, {held[1]:,} in B)"
    else:
        x, y = (tree.rows(c, plans[0].to(tree.leaves(c)[0].device)) for c in columns)
        yield from (f"client {client}'s examples, column {gap}" for gap in gaps(x, y, epsilon))
    if tree.leaves(a.own) and tree.leaves(b.own):
        yield from (f"client {client}'s state, {gap}" for gap in gaps(_row(a.own, i), _row(b.own, j), epsilon))


def _together(a: Seen, b: Seen) -> list[tuple[int, int, int]]:
    """The clients of both cohorts in A's order: id, place in A, place in B. A client that comes twice counts once."""
    places = {c: j for j, c in reversed(list(enumerate(b.cohort.id.tolist())))}
    shared = {c: (c, i, places[c]) for i, c in reversed(list(enumerate(a.cohort.id.tolist()))) if c in places}
    return sorted(shared.values(), key=lambda each: each[1])


def _update_gaps(a: Seen, b: Seen, i: int, j: int, epsilon: float) -> list[TensorGap]:
    x, y = _update(a, i), _update(b, j)
    if x is None or y is None:
        return [] if x is y else [TensorGap(f"update (not finite in {'A' if x is None else 'B'})", None, None, False)]
    return gaps(x, y, epsilon)


def _update(seen: Seen, place: int) -> Tree | None:
    """What a client sent back, {"weight", ...}; None where it was not finite."""
    at = (seen.kept == place).nonzero().flatten()
    if not len(at):
        return None
    row = _row(seen.updates, int(at[0]))
    return {**row["value"], "weight": row["weight"]}


def _row(stack: Tree, place: int) -> Tree:
    return tree.rows(stack, place)


def _real(seen: Seen, place: int) -> Tensor:
    """Which entries of a client's plan are real."""
    plan, count = seen.cohort.plan[place], seen.cohort.count[place]
    return torch.arange(plan.shape[1]) < count[:, None]


def _dotted(path: str) -> str:
    return path.replace("/inner", "").replace("/", ".")


def _number(x: Tensor) -> str:
    return f"{float(x):.7g}"
