"""From [attack] to who attacks, with which rows and updates; and what cannot be attacked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.attacks.model import ATTACKS
from atoll.core import KNOWS, Algorithm, Attack, Chain, Examples, Reducer, Round, Spec, resolve, schedules_in, sees_all
from atoll.data import Dataset, Partition, Population
from atoll.errors import ConfigError, SpecError
from atoll.experiment.experiment import Experiment
from atoll.experiment.registry import build
from atoll.reducers import Attacked, Bounds, ResidueEncoding
from atoll.rounds import UnderAttack
from atoll.tree import Tree

_LISTED = 10_000  # attackers named in run.json


@dataclass(frozen=True, eq=False)
class AttackPlan:
    """An attack among these clients: what it puts beside the data, and what it is measured on."""

    name: str
    attack: Attack
    ids: Tensor  # (M,) rising
    population: int
    rows: Tree | None = None  # poisoned rows, which come after the training data
    table: Tensor | None = None  # `indices` of the training partition, with attackers' rows replaced by those
    probe: Tree | None = None  # test examples with the class that the attack wants

    @property
    def mask(self) -> Tensor:
        """(N,) is each client an attacker?"""
        return torch.zeros(self.population, dtype=torch.bool).index_fill(0, self.ids, True)

    def columns(self, train: Tree) -> Tree:
        """The training data, the poisoned rows behind them."""
        return train if self.rows is None else tree.cat([train, self.rows])

    def reading(self, population: Population) -> Population:
        """The population with its second table of rows."""
        return population if self.table is None else replace(population, replaced=self.table)

    def around(self, round: Round) -> Round:
        return UnderAttack(round, self.attack, self.table is not None, self.attack.crafts)

    def reducing(self, reducer: Reducer[Any]) -> Reducer[Any]:
        return Attacked(reducer, self.attack, self.mask) if self.attack.crafts else reducer

    def sentence(self) -> str:
        """Who does what, knowing what."""
        last = "the end" if self.attack.stop is None else f"round {self.attack.stop}"
        who = f"{len(self.ids)} of {self.population} clients"
        return f"{self.name} by {who}, from round {self.attack.start} to {last}; it knows {KNOWS[self.attack.knows]}"

    def written(self) -> dict[str, Any]:
        """For run.json."""
        listed = {"clients": self.ids.tolist()} if len(self.ids) <= _LISTED else {}
        until = {} if self.attack.stop is None else {"stop": self.attack.stop}
        facts = {"name": self.name, "knowledge": KNOWS[self.attack.knows], "start": self.attack.start, **until}
        does = {"poisons": self.table is not None, "crafts": self.attack.crafts}
        return {**facts, **does, "count": len(self.ids), "population": self.population, **listed}


def plan_attack(
    experiment: Experiment, dataset: Dataset, training: Partition, clients: int, algorithm: Algorithm, round: Round
) -> AttackPlan | None:
    """What [attack] asks for, among the first `clients` of the partition; None where nobody attacks."""
    if experiment.attack is None:
        return None
    attack = make_attack(experiment)
    ids = _who(attack, clients, training.client_names[:clients], experiment.seed)
    if not len(ids):
        return None
    _check_rounds(attack, experiment.rounds)
    _check_place(experiment, attack, algorithm, round)
    plan = AttackPlan(str(experiment.attack["name"]), attack, ids, clients)
    return _poisoned(plan, dataset, training, rng.key(experiment.seed, "attack")) if attack.poisons else plan


def make_attack(experiment: Experiment) -> Attack:
    """As the file names it."""
    assert experiment.attack is not None
    attack = build(ATTACKS, experiment.attack, where="attack")
    if not isinstance(attack, Attack):
        name = experiment.attack["name"]
        raise ConfigError(f"attack.name: {name!r} gives a {type(attack).__name__}. Derive it from atoll.core.Attack.")
    return attack


def _who(attack: Attack, population: int, names: Sequence[str], seed: int) -> Tensor:
    """The attackers: those named, or the first of an order of all clients that the seed draws."""
    if (attack.share is None) == (attack.clients is None):
        raise ConfigError("attack: give share (of all clients), or clients (numbers or names), and not both.")
    if attack.clients is not None:
        return _named(attack.clients, population, names)
    count = round(float(attack.share or 0.0) * population)
    if attack.share and not count:
        raise ConfigError(
            f"attack.share: {attack.share:g} of {population} clients is nobody. Use at least "
            f"{1 / population:.3g}, or 0 for no attack."
        )
    order = torch.argsort(rng.uniform(rng.key(seed, "attackers"), (population,)), stable=True)
    return order[:count].sort().values


def _named(clients: list[int | str], population: int, names: Sequence[str]) -> Tensor:
    numbers: dict[int | str, int] = {i: i for i in range(population)}
    numbers |= {name: i for i, name in enumerate(names)}
    unknown = [name for name in clients if name not in numbers]
    if unknown:
        some = f"{', '.join(names[:8])}, or " if names else ""
        raise ConfigError(f"attack.clients: there is no client {unknown[0]!r}. Use {some}0 to {population - 1}.")
    return torch.tensor(sorted({numbers[name] for name in clients}), dtype=torch.int64)


def _check_rounds(attack: Attack, rounds: int) -> None:
    if attack.start > rounds:
        raise ConfigError(f"attack.start: {attack.start} is after the last round, {rounds}. Start earlier.")
    if attack.stop is not None and attack.stop < attack.start:
        raise ConfigError(f"attack.stop: {attack.stop} is before attack.start, {attack.start}. Both count from 1.")


def _check_place(experiment: Experiment, attack: Attack, algorithm: Algorithm, round: Round) -> None:
    """What an attack cannot be put into."""
    name = (experiment.attack or {})["name"]
    if algorithm.traits().pooled:
        raise ConfigError(
            f"attack: {experiment.algorithm['name']} pools all data in one place, so that there are no clients to "
            "attack it. Leave [attack] out."
        )
    if not attack.crafts:
        return
    if (why := round.traits().refuses.get("attack")) is not None:
        raise ConfigError(f"attack.name: {name} makes up updates, and {why}")
    instead = "Use an attack on data (label_flip, label_swap, or backdoor with boost = 1)"
    if round.traits().per_client:
        raise ConfigError(
            f"attack.name: {name} replaces what a server receives, and in this round neighbours mix models without "
            f"one, or the server has several. {instead}, or round.name = 'central'."
        )
    if experiment.secure is not None and sees_all(attack.knows):
        raise SpecError(
            f"attack.name: {name} knows {KNOWS[attack.knows]}, and with [secure] nobody sees another's update. Use "
            "sees = 'colluders' where it has that, or one that knows no more than its own (sign_flip, scaled), or "
            "leave [secure] out."
        )


def check_sent(plan: AttackPlan | None, like: Tree, algorithm: str) -> None:
    """Refuse to make up updates where an update, `like` these zeros, holds nothing."""
    if plan is not None and plan.attack.crafts and not any(x.is_floating_point() for x in tree.leaves(like)):
        raise ConfigError(
            f"attack.name: {plan.name} makes up updates, and clients of {algorithm} send nothing. Use an attack on "
            "data (label_flip), or an algorithm with a server (fedavg)."
        )


def _poisoned(plan: AttackPlan, dataset: Dataset, training: Partition, key: Tensor) -> AttackPlan:
    """The rows that attackers train on in place of theirs, and the probe of the test data."""
    if dataset.kind != "classification":
        raise ConfigError(f"attack.name: {plan.name} changes classes; {dataset.name} has none. Use sign_flip or alie.")
    places = torch.isin(training.owners(), plan.ids).nonzero()[:, 0]
    attacker = torch.searchsorted(plan.ids, training.owners()[places])
    high = float(dataset.train["x"].max()) if isinstance(dataset.train["x"], Tensor) else 0.0
    own = Examples(tree.rows(dataset.train, training.indices[places]), dataset.outputs, high)
    poison = plan.attack.poison(own, attacker, rng.fold_name(key, "poison"))
    fresh = dataset.examples + torch.arange(len(poison.places))
    table = training.indices.index_copy(0, places[poison.places], fresh)
    probe = None
    if dataset.test is not None:
        probe = plan.attack.probe(Examples(dataset.test, dataset.outputs, high), rng.fold_name(key, "poison"))
    found = probe if probe is not None and len(probe["y"]) else None
    return replace(plan, rows=poison.columns, table=table, probe=found)


def bounded(reducer: Reducer[Any], plan: AttackPlan | None, chain: Chain, spec: Spec) -> Reducer[Any]:
    """The attacked reducer with the bounds that the chain promises; a SpecError where the chain leaves no room for it.

    `spec` is what is certain before the first transform.
    """
    if plan is None or not isinstance(reducer, Attacked):
        return reducer
    bound, after = resolve(chain, 0, []).bind(spec)
    if after.domain == "modular":
        return replace(reducer, encoding=_encoding(plan, after))
    if after.domain not in ("real", "sketch"):
        raise SpecError(
            f"attack.name: {plan.name} makes up real numbers, and after transform updates are whole ones. Use an "
            "attack on data, put secure_sum behind fixed_point, or leave fixed_point out."
        )
    if (after.l2 is not None or after.l1 is not None) and schedules_in(chain):
        raise SpecError(
            "attack: crafted updates are cut to the bound of transform, which here follows a schedule. Use a fixed "
            "max_norm."
        )
    if sees_all(plan.attack.knows) and any(m.has_server_side() for m in bound.mechanisms()):
        raise SpecError(
            f"attack.name: {plan.name} knows {KNOWS[plan.attack.knows]}, and what it sends depends on them: one honest "
            "client then moves the sum by more than its own bound, and there is no epsilon. Use an attack that knows "
            "no more than the attackers' updates (sees = 'colluders'), or leave the noise out."
        )
    return replace(reducer, bounds=Bounds(after.l2, after.l1))


def _encoding(plan: AttackPlan, after: Spec) -> ResidueEncoding:
    """How what is made up travels in a sum of residues; the bound of a client is a range, since nobody can check it."""
    if after.linf is not None or after.step is None or after.l2 is None:
        raise SpecError(
            f"attack.name: {plan.name} makes up updates, and here every client's own noise is in what it sends. Use an "
            "attack on data, or noise of the sum (discrete_gaussian, skellam)."
        )
    return ResidueEncoding(after.step, 2.0**after.bits, min(after.l2, after.l1 or after.l2))


def defence_notes(plan: AttackPlan | None, reducer: Reducer[Any], name: str, cohort: int | None) -> list[str]:
    """Where a defence does not do what its name promises; None: cohorts have no fixed size."""
    if cohort is None:
        return []
    notes = []
    if reducer.is_plain_mean(cohort):
        notes.append(f"reducer: with these options {name} of {cohort} clients is a plain mean, and no defence.")
    attackers = 0 if plan is None else min(len(plan.ids), cohort)
    holds, breaks = reducer.tolerates(cohort), reducer.breaks_at(cohort)
    if name != "mean" and breaks is not None and attackers > holds:
        who = f"{attackers} of {cohort} clients attack"
        notes.append(f"reducer: {who}, and {name} holds up to {holds}; {breaks} can move it as far as they like.")
    return notes


def attack_notes(plan: AttackPlan | None, chain: Chain, spec: Spec) -> list[str]:
    """What a user should know."""
    if plan is None:
        return []
    notes = [f"Attack: {plan.sentence()}."]
    if plan.attack.crafts and resolve(chain, 0, []).bind(spec)[1].domain == "modular":
        notes.append(
            "Nobody can hold a single update of a secure sum against a bound: what attackers make up is cut only to "
            "the range of its fixed-point numbers. A clip binds honest clients alone."
        )
    if resolve(chain, 0, []).bind(spec)[0].mechanisms():
        notes.append(
            "The epsilon is that of honest clients: what attackers send does not depend on this round's honest "
            "updates, and is held to the bound that the noise was measured for. Attackers are promised nothing."
        )
    return notes
