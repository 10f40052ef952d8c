"""What an attacker sees: updates as the run's own rounds, algorithm and transforms make them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.attacks import without_noise
from atoll.attacks.leakage.simulate import PARTS, Simulation
from atoll.attacks.leakage.victims import Victims, choose, victims
from atoll.core import Chain, Info, Stack, Update
from atoll.engines import arithmetic
from atoll.errors import ConfigError, DivergenceError
from atoll.experiment import Setup
from atoll.privacy.run import metrics_read
from atoll.records import RunFolder
from atoll.reducers import Collect
from atoll.rounds import client_key
from atoll.runs import RunLoop
from atoll.tree import Tree

View = Literal["server", "released"]


@dataclass(frozen=True, eq=False)
class Observed:
    """The means of G groups of m clients (m = 1: single updates), and all that goes into simulating them."""

    setup: Setup
    victims: Victims
    simulation: Simulation
    target: Tree  # leaves (G, ...), shaped like the model's parameters
    buffers: Tree  # leaves (G, ...): what clients send of BatchNorm's statistics; {} for none
    weights: Tensor  # (G, m)
    round: int  # counted from 1
    view: View

    @property
    def device(self) -> torch.device:
        return self.setup.device

    def part(self, groups: slice) -> Observed:
        """Some of the groups."""
        target, buffers = (tree.rows(x, groups) if tree.leaves(x) else x for x in (self.target, self.buffers))
        some = self.victims.part(groups)
        return replace(self, victims=some, target=target, buffers=buffers, weights=self.weights[groups])

    def in_one_step(self) -> Observed:
        """As an attacker takes it who does not unroll: one step on everything, as long as the mean step was."""
        mean = self.victims.steps.float().mean(1)
        target = tree.map(lambda x: x / mean.reshape(-1, *[1] * (x.dim() - 1)), self.target)
        return replace(self, victims=self.victims.in_one_step(), target=target)

    def work(self) -> dict[str, Tensor]:
        """What is known of every client's work, axes (G, m, ...)."""
        v = self.victims
        return {"plan": v.plan, "count": v.count, "steps": v.steps, "examples": v.examples.float()}


def clients_seen_together(setup: Setup, clients: int | None, view: View) -> int:
    """How many clients' mean is all that this attacker sees of them."""
    whole = setup.participation.size or max(1, round(setup.participation.expected or setup.population.size))
    table = setup.experiment.secure
    secret = table is not None and table.level is None  # else edges see what single clients send
    whole = setup.round.parties(0, whole) or whole if secret else whole
    together = secret or view == "released"
    if clients is not None and together and clients != whole:
        why = "updates are summed in secret" if secret else "the mean is released"
        raise ConfigError(f"--clients: {why}, so all that is seen is of {whole} clients. Leave it out.")
    return whole if together else clients or 1


def observe(
    setup: Setup,
    groups: int,
    clients: int | None = None,
    number: int = 1,
    view: View = "server",
    seed: int = 0,
    broadcast: Tree | None = None,
) -> Observed:
    """Play the rounds before, then ask the engine for every victim's update in round `number` (from 1).

    With a `broadcast` of another run it is that which they are sent.
    """
    _refuse(setup, number)
    together = clients_seen_together(setup, clients, view)
    with _loop(setup) as loop:
        for _ in range(number - 1):
            loop.next_round()
        plan = loop.plan
        ctx = plan.context(number - 1)
        ids = choose(ctx.sample()[0], setup.population.size, groups, together, rng.key(seed, "victims"))
        state = loop.state.round
        sent, seen = setup.round.broadcast(ctx, state, ids.reshape(-1))
        sent = sent if broadcast is None else broadcast
        program = replace(ctx.program, reducer=Collect())
        request = ctx.train(sent, seen, ids.reshape(-1), client_key(plan.key(number - 1)), client_state="read")
        with arithmetic(setup.device, setup.choice.precision):
            trained: Any = loop.own.run(replace(request, program=program))
        stack = _in_order(trained.partial, trained.order, len(request.ids))
        chain = plan.chain(number - 1)[0]
        means = _means(stack, ids, chain, state["chain"], view, rng.key(seed, "released"))
        own = plan.client_rows["algorithm"]
    part = _part(setup, means)
    held = victims(setup, ids)
    simulation = Simulation(setup.algorithm, ctx.settings["algorithm"], sent, own, part, held.alike)
    weights = stack.updates.weight.reshape(ids.shape)
    return Observed(setup, held, simulation, means[part], means.get("buffers", {}), weights, number, view)


@contextmanager
def _loop(setup: Setup) -> Iterator[RunLoop]:
    """The run's rounds, in a folder that goes."""
    with tempfile.TemporaryDirectory(prefix="atoll-attack-") as place:
        yield RunLoop(setup, RunFolder(Path(place)))


def _in_order(stack: Stack, order: Tensor, clients: int) -> Stack:
    """As the clients were asked for."""
    if len(stack) < clients:
        raise DivergenceError(
            f"{clients - len(stack)} of {clients} updates are not finite, so there is nothing to attack. "
            "Use a lower algorithm.lr."
        )
    back = torch.argsort(order).to(stack.updates.weight.device)
    updates = Update(tree.rows(stack.updates.value, back), stack.updates.weight[back])
    return Stack(updates, Info(*(column[back.to(column.device)] for column in stack.info)))


def _means(stack: Stack, ids: Tensor, chain: Chain, state: Tree, view: View, key: Tensor) -> Tree:
    """Every group's mean after the server's side: once for each group, as a server does it once for each round.

    A server that looks does so before it adds noise; whoever sees the mean that is released, after.
    """
    G, m = ids.shape
    side = chain if view == "released" else without_noise(chain)
    collect = Collect()
    means = []
    for g in range(G):
        rows = slice(g * m, (g + 1) * m)
        group = Stack(
            Update(tree.rows(stack.updates.value, rows), stack.updates.weight[rows]),
            Info(*(c[rows] for c in stack.info)),
        )
        total = replace(collect.finish(group, {}, key)[0], invited=m)
        total, _ = side.server(total, state, rng.fold(key, int(ids[g, 0])))
        means.append(total.mean())
    return tree.map(lambda *leaves: torch.stack(leaves), *means)  # type: ignore[no-any-return]


def _part(setup: Setup, means: Tree) -> str:
    part = next((name for name in PARTS if name in means), None)
    if part is None:
        raise ConfigError(
            f"algorithm: {setup.experiment.algorithm['name']} sends {', '.join(means) or 'nothing'}, and neither a "
            "gradient nor a change of the model. Attack one that does: fedsgd, fedavg, fedprox, fednova."
        )
    return part


def _refuse(setup: Setup, number: int) -> None:
    """What cannot be attacked so, with what can."""
    name, traits = setup.experiment.algorithm["name"], setup.algorithm.traits()
    if traits.pooled or not setup.round.traits().has_server:
        why = "all data is pooled" if traits.pooled else "there is no server"
        raise ConfigError(f"algorithm: with {name} {why}, so no client sends an update. Attack a run with a server.")
    if not 1 <= number <= setup.experiment.rounds:
        raise ConfigError(f"--round: must be 1 to {setup.experiment.rounds} (got {number}).")
    adaptive = [metric for schedule in setup.schedules() for metric in metrics_read(schedule)]
    if number > 1 and adaptive and setup.experiment.evaluate.every > number:
        raise ConfigError(f"--round: a schedule reads {adaptive[0]!r}. Attack round 1, or set evaluate.every = 1.")
