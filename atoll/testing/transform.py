"""Does a transform keep what it promises when it is bound?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap

from atoll import rng, tree
from atoll.core import Spec, Total, Transform, Update, extract, inject, resolve
from atoll.errors import ConformanceError, SpecError
from atoll.testing.assertions import distance, need, need_close, need_same, need_shape
from atoll.tree import Tree

_SIZE = 29  # numbers in the updates below
_STRONG = Spec(l2=1.0, l1=3.0, equal_weights=True, cohort=5, size=_SIZE, rounds=6, min_separation=3)
_INTEGER = Spec(l2=200.0, l1=600.0, equal_weights=True, domain="integer", cohort=5, size=_SIZE)
_SCALES = (1.0, 1e6, 1e-6, 0.0, 30.0)  # of the updates of five clients: huge, tiny and none at all among them


@dataclass(frozen=True)
class TransformCase:
    """A bound transform, what was certain before it and after it, and what it starts with."""

    bound: Transform
    before: Spec
    after: Spec
    state: Tree
    memory: Tree

    def updates(self, turn: int = 0) -> Update:
        """Five clients' updates, as `before` has them."""
        key = rng.key("updates", turn)
        value = {
            "delta": {"a": _normal(key, 0, (3, 4)), "b": _normal(key, 1, (3, 4)), "c": _normal(key, 2, (4,))},
            "buffers": {},
            "gradients": _normal(key, 3, ()).abs(),
        }
        for norm, bound in ((tree.norm, self.before.l2), (_l1, self.before.l1)):
            if bound is not None:
                value = vmap(lambda u, f=norm, b=bound: tree.scale(u, (b / (f(u) + 1e-9)).clamp(max=1.0)))(value)
        if self.before.domain == "integer":
            value = tree.map(lambda x: x.double().trunc(), value)
        weight = torch.ones(5) if self.before.equal_weights else torch.tensor([3.0, 1.0, 4.0, 2.0, 5.0])
        return Update(value, weight, staleness=torch.tensor([0.0, 3.0, 1.0, 0.0, 7.0]))

    def client(self, update: Update, memory: Tree, key: Tensor) -> tuple[Update, Tree]:
        """One client's side."""
        return self.bound.client(update, self.state, memory, key)

    def clients(self, updates: Update, memory: Tree, keys: Tensor) -> tuple[Update, Tree]:
        """Every client's side, one after the other, stacked."""
        done = [self.client(_row(updates, c), _pick(memory, c), keys[c]) for c in range(len(keys))]
        value = tree.map(lambda *xs: torch.stack(xs), *(u.value for u, _ in done))
        kept = tree.map(lambda *xs: torch.stack(xs), *(m for _, m in done)) if tree.leaves(memory) else memory
        return Update(value, torch.stack([u.weight for u, _ in done])), kept

    def five(self) -> Tree:
        """Five clients' memories before their first turn."""
        return tree.map(torch.clone, tree.stack(self.memory, 5)) if tree.leaves(self.memory) else self.memory


def check_transform(transform: Transform, spec: Spec | None = None) -> list[str]:
    """The names of the checks that a transform passes, or a ConformanceError that says which one it does not.

    `spec` is what is certain before it: nothing, unless given, or (if it refuses that) a bound of 1 and equal weights,
    or (if it refuses that too) integers.

    >>> from atoll.transforms import ClipL2
    >>> "keeps its bound" in check_transform(ClipL2(max_norm=0.5))
    True
    """
    case = _bound(resolve(transform, 0, []), spec)
    return [name for check in CHECKS for name in [check(case)] if name]


def pure(case: TransformCase) -> str:
    """Both sides leave what they are given alone and give the same for the same key."""
    updates, memory, keys = case.updates(), case.five(), _keys()
    before = tree.digest({"u": updates._asdict(), "m": memory, "s": case.state})
    (first, kept), (again, kept_again) = (case.clients(updates, memory, keys) for _ in range(2))
    total = _total(first)
    out, state = case.bound.server(total, case.state, keys[0])
    back, state_again = case.bound.server(total, case.state, keys[0])
    same = before == tree.digest({"u": updates._asdict(), "m": memory, "s": case.state})
    need(same, "leaves what it is given alone", "a change in place", "no change", "an operation in place (mul_, +=)")
    cause = "a draw without the key, or state kept in the object"
    need_same(_tree(again, kept_again), _tree(first, kept), "same key, same update", cause)
    need_same({**back.value, "s": state_again}, {**out.value, "s": state}, "same key, same total", cause)
    if not case.bound.keyed:
        other, kept_other = case.clients(updates, memory, _keys(1))
        hint = "a draw on the client's side: leave `keyed` as it is"
        need_same(_tree(other, kept_other), _tree(first, kept), "keyed = False, so any key gives the same update", hint)
    return "pure, and keyed"


def keeps_structure(case: TransformCase) -> str:
    """Updates, memories and totals keep their keys, shapes and types, and stay finite."""
    updates, memory = case.updates(), case.five()
    new, kept = case.clients(updates, memory, _keys())
    cause = "a part that is dropped or renamed; transforms must take any named parts"
    if case.after.domain == case.before.domain and not case.bound.reshapes:
        given = tree.select(new.value, tuple(updates.value))  # it may add a part, and take it away again
        need_shape(given, updates.value, "keeps the structure of an update", cause)
    need_shape(kept, memory, "keeps the structure of a client's memory", cause)
    total = _total(new)
    out, state = case.bound.server(total, case.state, rng.key("server"))
    need_shape(out.value, _total(updates).value, "keeps the structure of the total", cause)
    need_shape(state, case.state, "keeps the structure of the server's state", cause)
    bad = [p for p, x in tree.paths({"update": new.value, "total": out.value}) if not torch.isfinite(x).all()]
    cause = "a division by the length of an update that is zero"
    need(not bad, "finite updates stay finite", f"not a number in {bad}", "finite numbers", cause)
    return "keeps the structure of updates and totals"


def same_stacked(case: TransformCase) -> str:
    """One client at a time and all under vmap are the same, also with settings as tensors."""
    updates, memory, keys = case.updates(), case.five(), _keys()
    truth = _tree(*case.clients(updates, memory, keys))
    program = inject(case.bound, extract(case.bound))
    m = 0 if tree.leaves(memory) else None
    try:
        found = vmap(program.client, in_dims=(0, None, m, 0))(updates, case.state, memory, keys)
    except Exception as e:  # a stranger's transform may raise anything
        first = str(e).strip().splitlines()[0][:200]
        cause = "branching on a tensor or .item(); use torch.where"
        raise ConformanceError(f"runs stacked: failed with {first!r}. Usual cause: {cause}.") from e
    need_close(_tree(*found), truth, "same stacked as one by one", "a sum over clients, or a draw that ignores the key")
    return "same stacked as one by one"


def keeps_bound(case: TransformCase) -> str | None:
    """No update is longer than the bounds that `bind` gave out, whatever came in (residues wrap around, and may be)."""
    bounds = [(f, b) for f, b in ((tree.norm, case.after.l2), (_l1, case.after.l1)) if b is not None]
    if not bounds or case.after.domain == "modular":
        return None
    memory = case.five()
    for turn in range(3):
        new, memory = case.clients(case.updates(turn), memory, _keys(turn))
        for norm, bound in bounds:
            longest = float(vmap(norm)(new.value).max())
            cause = "a bound for each tensor instead of the whole update, or something added after clipping"
            need(longest <= bound * (1 + 1e-5), "keeps its bound", longest, f"at most {bound:g}", cause)
    return "keeps its bound"


def keeps_equal_weights(case: TransformCase) -> str | None:
    """All weights are alike if `bind` says so, and untouched if it does not."""
    updates = case.updates()
    new = case.clients(updates, case.five(), _keys())[0].weight
    if case.after.equal_weights:
        cause = "equal_weights in the spec, but weights that pass through"
        need(bool((new == new[0]).all()), "all clients weigh the same", new.tolist(), "one number", cause)
        return "all clients weigh the same"
    same = bool(torch.equal(new, updates.weight))
    cause = "weights that change without equal_weights in the spec, so that nobody can rely on them"
    need(same, "leaves weights alone", new.tolist(), updates.weight.tolist(), cause)
    return None


def draws_apart(case: TransformCase) -> str | None:
    """Where it draws: another key is another draw, and two equal tensors get different ones."""
    updates, memory = case.updates(), case.five()
    delta = updates.value["delta"]
    updates = updates._replace(value={**updates.value, "delta": {**delta, "b": delta["a"]}})
    total = _total(case.clients(updates, memory, _keys())[0])
    sides = {
        "client": [case.clients(updates, memory, _keys(k))[0].value for k in (0, 1)],
        "server": [case.bound.server(total, case.state, rng.key(k))[0].value for k in (0, 1)],
    }
    drawing = {side: one for side, (one, other) in sides.items() if distance(one, other) > 0}
    for side, one in drawing.items():
        gap = distance({"x": one["delta"]["a"]}, {"x": one["delta"]["b"]})
        cause = "one key for all tensors; fold the number of the tensor into it"
        need(gap > 0, f"{side}: every tensor has its own draw", "one draw for two tensors", "two draws", cause)
    return "another key is another draw, for every tensor" if drawing else None


def feedback_loses_nothing(case: TransformCase) -> str | None:
    """What was sent and what is still held back add up to what came in."""
    if "residual" not in case.memory:
        return None
    memory, sent, given = case.five(), None, None
    for turn in range(4):
        updates = case.updates(turn)
        new, memory = case.clients(updates, memory, _keys(turn))
        sent = new.value if sent is None else tree.add(sent, new.value)
        given = updates.value if given is None else tree.add(given, updates.value)
    assert sent is not None
    assert given is not None
    cause = "a residual that is overwritten instead of added, or counted twice"
    need_close(tree.add(sent, memory["residual"]), given, "what is held back is not lost", cause)
    return "what is held back is not lost"


def keeps_packing(case: TransformCase) -> str | None:
    """What a compressor packed is as short behind it: every tensor is multiplied by one number, and no more."""
    if not case.bound.keeps_packing:
        return None
    updates = case.updates()
    sparse = tree.map(lambda x: x * (torch.arange(x[0].numel()).reshape(x.shape[1:]) % 3 != 0), updates.value)
    new = case.clients(updates._replace(value=sparse), case.five(), _keys())[0].value
    for (path, x), y in zip(tree.paths(sparse), tree.leaves(tree.select(new, tuple(sparse))), strict=True):
        rows, changed = x.reshape(len(x), -1).double(), y.reshape(len(y), -1).double()
        by = (rows * changed).sum(1, keepdim=True) / (rows**2).sum(1, keepdim=True).clamp(min=1e-300)
        gap = float(((changed - by * rows).abs() / rows.abs().amax(1, keepdim=True).clamp(min=1e-300)).max())
        cause = "noise, rounding or a choice of entries: leave `keeps_packing` as it is"
        need(gap < 1e-4, "keeps_packing, so tensors are only scaled", f"{path} off by {gap:.3g}", "a multiple", cause)
    return "leaves packed messages as short as they are"


def accounts_for_noise(case: TransformCase) -> str | None:
    """Where `bind` says that there is noise, an accountant hears of a mechanism; and nowhere else."""
    events = [mechanism.event() for mechanism in case.bound.mechanisms()]
    noisy = case.after.noise is not None and case.before.noise is None
    cause = "noise without an event(), or a transform around others that does not give their mechanisms()"
    wanted = "an event for the noise in its spec" if noisy else "no event, as there is no noise in its spec"
    need(bool(events) == noisy, "an account hears of its noise", events, wanted, cause)
    return "an account hears of its noise" if noisy else None


CHECKS: tuple[Callable[[TransformCase], str | None], ...] = (
    pure,
    keeps_structure,
    same_stacked,
    keeps_bound,
    keeps_equal_weights,
    draws_apart,
    feedback_loses_nothing,
    keeps_packing,
    accounts_for_noise,
)


def _bound(transform: Transform, spec: Spec | None) -> TransformCase:
    tried = [spec] if spec is not None else [Spec(), _STRONG, _INTEGER]
    for i, before in enumerate(tried):
        try:
            bound, after = transform.bind(before)
        except SpecError as e:
            if i == len(tried) - 1:
                raise ConformanceError(f"can be bound: refuses {before} ({e}). Give check_transform a spec.") from e
            continue
        like = tree.rows(TransformCase(bound, before, after, {}, {}).updates().value, 0)
        state, memory = bound.init(tree.zeros_like(like))
        return TransformCase(bound, before, after, state, memory)
    raise AssertionError("unreachable")


def _normal(key: Tensor, i: int, shape: tuple[int, ...]) -> Tensor:
    scale = torch.tensor(_SCALES).reshape(-1, *[1] * len(shape))
    return scale * rng.normal(rng.fold(key, i), (5, *shape))


def _l1(value: Tree) -> Tensor:
    return torch.stack([x.double().abs().sum() for x in tree.leaves(value)]).sum().float()


def _keys(turn: int = 0) -> Tensor:
    return torch.stack([rng.fold(rng.key("turn", turn), c) for c in range(5)])


def _row(updates: Update, c: int) -> Update:
    return Update(tree.rows(updates.value, c), updates.weight[c], staleness=updates.staleness[c])


def _pick(memory: Tree, c: int) -> Tree:
    return tree.rows(memory, c) if tree.leaves(memory) else memory


def _total(updates: Update) -> Total:
    value = tree.map(lambda x: tree.weighted_sum(x, updates.weight), updates.value)
    return Total(value, updates.weight.sum(), torch.tensor(5.0))


def _tree(update: Update, memory: Tree) -> Tree:
    return {"value": update.value, "weight": update.weight, "memory": memory}
