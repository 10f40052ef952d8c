"""Does an attack keep to its contract: pure, as blind as it says, and as close to honest updates as it claims?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.core import KNOWS, Attack, Examples, Info, Stack, Update, sees_all
from atoll.reducers import Attacked, Collect, Median
from atoll.testing.assertions import need, need_same, need_shape
from atoll.tree import Tree

_KEY = rng.key("attack")
_IDS = torch.tensor([11, 4, 8, 2, 30, 7, 5, 17, 21])
_ATTACKERS = (4, 7, 30)
_POPULATION = 40
_SHAPE = (1, 8, 8)
_CLASSES = 3
_SLACK = 1 + 1e-4  # of distances in float32


def check_attack(attack: Attack) -> list[str]:
    """The names of the checks that an attack passes, or a ConformanceError that says which one it does not.

    >>> from atoll.attacks.model import MinMax
    >>> check_attack(MinMax())[-1]
    'stays within the largest distance of honest updates'
    """
    return [name for check in CHECKS for name in [check(attack)] if name]


def states_its_knowledge(attack: Attack) -> str:
    """One of the four levels."""
    wanted = ", ".join(KNOWS)
    need(attack.knows in KNOWS, "states what it knows", attack.knows, f"one of {wanted}", "a level of its own")
    acts = attack.crafts or attack.poisons
    need(acts, "does something", "neither craft nor poison", "one of them", "hooks that are called otherwise")
    return f"knows {KNOWS[attack.knows]}"


def crafts_purely(attack: Attack) -> str | None:
    """Nothing that came in is changed, the same comes out twice, and the state keeps its structure."""
    if not attack.crafts:
        return None
    stack = _stack()
    before = _digest(stack)
    (one, state), (two, _) = (_after(attack, stack) for _ in range(2))
    cause = "an operation in place"
    need(before == _digest(stack), "leaves updates alone", "a change in place", "no change", cause)
    need_same(one, two, "gives the same twice", "a draw without a key")
    first = _reducer(attack).init(_like())["attack"]
    need_shape(state, first, "the state keeps its structure", "a key that is added on the way")
    return "crafting is pure, and its state keeps its structure"


def honest_rows_are_untouched(attack: Attack) -> str | None:
    """What honest clients send arrives as they sent it, and attackers' rows are numbers."""
    if not attack.crafts:
        return None
    stack = _stack()
    arrived, _ = _after(attack, stack)
    honest = ~_mask()[_IDS]
    cause = "rows that are written in the wrong places"
    need_same(tree.rows(arrived, honest), tree.rows(_sent(stack), honest), "honest updates arrive as they are", cause)
    finite = all(bool(torch.isfinite(x).all()) for x in tree.leaves(arrived))
    need(finite, "crafted updates are numbers", "inf or nan", "finite numbers", "a division by a spread of 0")
    return "honest updates are untouched"


def any_order(attack: Attack) -> str | None:
    """A cohort is a set: however updates are ordered, each attacker sends the same."""
    if not attack.crafts:
        return None
    order = torch.tensor([3, 0, 8, 6, 2, 5, 1, 7, 4])
    stack = _stack()
    arrived, _ = _after(attack, stack)
    shuffled, _ = _after(attack, _rows(stack, order))
    cause = "a choice by position; draws are addressed by client id"
    need_same(shuffled, tree.rows(arrived, order), "the order of clients does not matter", cause)
    return "the order of clients does not matter"


def as_blind_as_it_says(attack: Attack) -> str | None:
    """Updates of a round that it does not see make no difference to what it sends; how the model moved it may know."""
    if not attack.crafts or sees_all(attack.knows):
        return None
    stack, attackers = _stack(), _mask()[_IDS]
    arrived, _ = _after(attack, stack, rounds=1)
    changed = tree.map(lambda x: torch.where(_wide(attackers, x), x, 3 * x + 1), stack.updates.value)
    other, _ = _after(attack, replace(stack, updates=stack.updates._replace(value=changed)), rounds=1)
    cause = "knowledge that it does not state"
    mine = tree.rows(arrived, attackers)
    need_same(tree.rows(other, attackers), mine, "honest updates are not looked at", cause)
    if attack.knows == "own":
        _check_own(attack, stack, arrived)
    return "is as blind as it says"


def _check_own(attack: Attack, stack: Stack, arrived: Tree) -> None:
    """One attacker's update does not follow another's."""
    place = _IDS.tolist().index(_ATTACKERS[0])
    others = _mask()[_IDS] & (torch.arange(len(_IDS)) != place)
    changed = tree.map(lambda x: torch.where(_wide(others, x), 3 * x + 1, x), stack.updates.value)
    other, _ = _after(attack, replace(stack, updates=stack.updates._replace(value=changed)), rounds=1)
    cause = "colluding; say knows = 'colluders'"
    need_same(tree.rows(other, place), tree.rows(arrived, place), "other attackers' updates are not looked at", cause)


def cohorts_of_few(attack: Attack) -> str | None:
    """One attacker, no honest client, or nobody at all: numbers, and no failure."""
    if not attack.crafts:
        return None
    attackers = _mask()[_IDS].nonzero()[:, 0]
    honest = (~_mask()[_IDS]).nonzero()[:, 0]
    for what, index in (
        ("one attacker among honest clients", torch.cat([attackers[:1], honest])),
        ("attackers alone", attackers),
        ("one attacker alone", attackers[:1]),
        ("honest clients alone", honest),
        ("nobody", attackers[:0]),
    ):
        _after(attack, _rows(_stack(), index), what=f"{what}: ")
    return "cohorts of few are no special case"


def idle_outside_its_rounds(attack: Attack) -> str | None:
    """Before `start` and after `stop` everybody is honest."""
    if not attack.crafts:
        return None
    stack, later = _stack(), replace(attack, start=5, stop=6)
    for number, active in ((3, False), (4, True), (5, True), (6, False)):
        need(later.active(number) == active, f"is it on in round {number + 1}?", not active, active, "an own `active`")
        if not active:
            arrived, _ = _after(later, stack, number)
            need_same(arrived, _sent(stack), "is idle outside its rounds", "a craft that is always on")
    return "idle outside its rounds"


def poisons_own_rows(attack: Attack) -> str | None:
    """Poisoned rows are among those given, of the same form, with classes that exist; the probe likewise."""
    if not attack.poisons:
        return None
    examples, attacker = _examples(), torch.arange(60) % 3
    before = tree.digest(examples.columns)
    poison, again = (attack.poison(examples, attacker, _KEY) for _ in range(2))
    same = before == tree.digest(examples.columns)
    need(same, "leaves examples alone", "a change in place", "no change", "an operation in place")
    need_same(poison.columns, again.columns, "poisons the same twice", "a draw without a key")
    places = poison.places
    inside = bool(((places >= 0) & (places < 60)).all()) and len(set(places.tolist())) == len(places)
    need(inside, "replaces rows that are there, once", places.tolist()[:5], "places 0 to 59", "rows of others")
    _check_form(poison.columns, examples, "a poisoned row")
    probe = attack.probe(examples, _KEY)
    if probe is not None:
        _check_form(probe, examples, "the probe")
    return "poisons its own rows, and they look like others"


def _check_form(columns: Tree, examples: Examples, what: str) -> None:
    for name, column in examples.columns.items():
        alike = columns[name].dtype == column.dtype and columns[name].shape[1:] == column.shape[1:]
        wanted = f"{column.dtype} of shape {tuple(column.shape[1:])}"
        need(alike, f"{what} has the form of {name}", columns[name].dtype, wanted, "a cast that is missing")
    y = columns["y"]
    known = bool(((y >= 0) & (y < examples.classes)).all())
    need(
        known, f"{what} has a class that exists", y.unique().tolist(), f"0 to {examples.classes - 1}", "a wrong target"
    )


def keeps_its_distance(attack: Attack) -> str | None:
    """What it says of how near crafted updates stay to benign ones is true: to those that it sees."""
    if not attack.stealth:
        return None
    arrived, sent = (_numbers(value) for value in (_after(attack, _stack())[0], _sent(_stack())))
    attackers = _mask()[_IDS]
    crafted, benign = arrived[attackers], sent[~attackers if sees_all(attack.knows) else attackers]
    squared = torch.cdist(torch.cat([crafted, benign]), benign) ** 2
    judged = squared.max(1).values if attack.stealth == "largest distance" else squared.sum(1)
    found, wanted = float(judged[: len(crafted)].max()) ** 0.5, float(judged[len(crafted) :].max()) ** 0.5
    need(
        found <= wanted * _SLACK,
        f"no farther than the {attack.stealth} of honest updates",
        f"{found:.4g}",
        f"at most {wanted:.4g}",
        "a wrong gamma: the search must end at the last value that was allowed",
    )
    return f"stays within the {attack.stealth} of honest updates"


CHECKS: tuple[Callable[[Attack], str | None], ...] = (
    states_its_knowledge,
    crafts_purely,
    honest_rows_are_untouched,
    any_order,
    as_blind_as_it_says,
    cohorts_of_few,
    idle_outside_its_rounds,
    poisons_own_rows,
    keeps_its_distance,
)


class _Arrived(Collect):
    """Hands out what arrived, in the order of client ids."""

    def finish(self, partial: Stack, state: Tree, key: Tensor) -> tuple[Any, Tree, Tree]:
        total = super().finish(partial, state, key)[0]
        return total, state, {"ids": partial.info.id, "value": partial.updates.value}


def _reducer(attack: Attack) -> Attacked:
    """Around what hands out the stack; an attack that knows its defence is given the median to search against."""
    inner = _Watched() if attack.knows == "defence" else _Arrived()
    return Attacked(inner, attack, _mask())


class _Watched(Median):
    """The median, which hands out what arrived."""

    def finish(self, partial: Stack, state: Tree, key: Tensor) -> tuple[Any, Tree, Tree]:
        total = super().finish(partial, state, key)[0]
        return total, state, {"ids": partial.info.id, "value": partial.updates.value}


def _after(
    attack: Attack, stack: Stack, number: int | None = None, rounds: int = 2, what: str = ""
) -> tuple[Tree, Tree]:
    """What arrives of a stack in the last of some rounds, in the order of the stack, and the attack's state.

    A server leaves out what is not finite, so that whoever sends that has not attacked.
    """
    reducer = _reducer(attack)
    state = reducer.init(_like())
    number = attack.start - 1 if number is None else number
    for _ in range(rounds):
        state = {**state, "round": torch.tensor(number)}
        _, state, said = reducer.finish(reducer.lift(stack.updates, stack.info, _KEY), state, _KEY)
        finite = "not_finite" not in said["attack"]
        need(finite, f"{what}numbers arrive", "inf or nan", "finite numbers", "a deviation of one update")
    back = torch.argsort(torch.argsort(stack.info.id))
    return tree.rows(said["value"], back), state["attack"]


def _mask() -> Tensor:
    return torch.zeros(_POPULATION, dtype=torch.bool).index_fill(0, torch.tensor(_ATTACKERS), True)


def _stack() -> Stack:
    n, key = len(_IDS), rng.key("updates under attack")
    drift = rng.normal(rng.fold_name(key, "drift"), (3, 4))
    value = {"delta": {"w": rng.normal(key, (n, 3, 4)) + drift, "b": rng.uniform(key, (n, 2)) - 0.3}, "buffers": {}}
    info = Info(_IDS, torch.ones(n), torch.ones(n), torch.zeros(n))
    return Stack(Update(value, torch.ones(n)), info)


def _numbers(value: Tree) -> Tensor:
    """(C, D)."""
    leaves = tree.leaves(tree.without(value, ("buffers",)))
    return torch.cat([x.reshape(len(x), -1) for x in leaves], 1).double()


def _sent(stack: Stack) -> Tree:
    return stack.updates.value


def _rows(stack: Stack, index: Tensor) -> Stack:
    value = tree.rows(stack.updates.value, index)
    return Stack(Update(value, stack.updates.weight[index]), Info(*(x[index] for x in stack.info)))


def _like() -> Tree:
    return tree.map(lambda x: x.new_zeros(x.shape[1:]), _stack().updates.value)  # type: ignore[no-any-return]


def _wide(rows: Tensor, x: Tensor) -> Tensor:
    return rows.reshape(-1, *[1] * (x.dim() - 1))


def _digest(stack: Stack) -> Sequence[str]:
    return tree.digest(stack.updates.value), tree.digest({"weight": stack.updates.weight})


def _examples() -> Examples:
    key = rng.key("examples under attack")
    x = (rng.uniform(key, (60, *_SHAPE)) * 200).to(torch.uint8)
    return Examples({"x": x, "y": torch.arange(60) % _CLASSES}, _CLASSES, 255.0)
