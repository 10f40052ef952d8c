"""What a round is before it is made: who takes part, and with which layers and settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from atoll import rng, tree
from atoll.attacks import drawn
from atoll.core import Algorithm, Chain, Cohort, Job, Participation, Spec
from atoll.core.settings import extract, resolve
from atoll.experiment.setup import Setup
from atoll.rounds import NoisySum, Parts, Planted
from atoll.runs.state import State
from atoll.tree import Tree


class Agenda:
    """The rounds of one run, as its state has them. `layers` are those of the first: engines keep programs for them."""

    def __init__(self, setup: Setup, state: State, layers: tuple[Chain, Spec], noisy: NoisySum | None) -> None:
        self.setup, self.state, self.noisy, self.seed = setup, state, noisy, setup.experiment.seed
        self.template, self.spec = layers
        self._layers: tuple[int, Chain, Spec] = (0, *layers)
        self._resolved = resolve(setup.chain, 0, [])
        self._settings: tuple[Algorithm, Chain, Tree] | None = None
        self._drawn: tuple[int, Participation, Cohort] | None = None
        self._shown: list[dict[str, Any]] = []

    @property
    def past(self) -> list[dict[str, Any]]:
        """The rounds so far, as schedules and stopping may see them."""
        history, rules = self.state.history, self.setup.rules
        if rules is None:
            return history
        del self._shown[len(history) :]
        for entry in history[len(self._shown) :]:
            self._shown.append({k: v for k, v in entry.items() if k in rules.shown})
        return self._shown

    def layers(self, number: int) -> tuple[Chain, Spec]:
        """The layers of a round and what is certain after them; a schedule sees the rounds before."""
        if self._layers[0] != number:
            now = resolve(self.setup.chain, number, self.past[:number])
            bound = self._layers[1:] if now is self._resolved else now.bind(self.setup.spec())
            self._layers, self._resolved = (number, *bound), now
        return self._layers[1:]

    def cohort(self, number: int) -> tuple[Participation, Cohort]:
        """Who takes part and what they do: drawn while the device was at work on the round before, or now."""
        if self._drawn is None or self._drawn[0] != number:
            self._drawn = (number, *self._draw(number))
        return self._drawn[1:]

    def parts(self, number: int, engine: Any = None, meanwhile: Callable[[], None] | None = None) -> Parts:
        """What a round is made of."""
        now = resolve(self.setup.algorithm, number, self.past)
        layers, _ = self.layers(number)
        return Parts(
            self.setup.algorithm,
            self.template,
            now,
            layers,
            self._on_device(now, layers),
            self.setup.reducer,
            engine,
            self.state.memory,
            self.setup.statistics,
            meanwhile,
            self._private(number),
        )

    def _on_device(self, now: Algorithm, layers: Chain) -> Tree:
        """A round's numbers as tensors: sent there again only if they are others than the last round's."""
        last = self._settings
        if last is None or last[0] is not now or last[1] is not layers:
            settings: Tree = {"algorithm": extract(now), "chain": extract(layers)}
            last = self._settings = (now, layers, tree.to(settings, self.setup.device))
        return last[2]

    def job(self, number: int) -> Job:
        """The work of one round, as an engine gets it."""
        return self._job(number, self.cohort(number)[1])

    def trial(self) -> Job:
        """The first round's work, to try an engine on; that of a few clients, where nobody comes to the first round."""
        job = self.job(0)
        if len(job.cohort):
            return job
        few = torch.arange(min(8, self.setup.population.size))
        return self._job(0, self.setup.population.cohort(few, rng.key(self.seed, "trial")))

    def _job(self, number: int, cohort: Cohort) -> Job:
        parts, state = self.parts(number), self.state
        sent, each = self.setup.topology.sent(parts.now, state.server, cohort.id)
        return Job(
            parts.algorithm,
            parts.chain,
            parts.reducer,
            parts.settings,
            sent,
            parts.chain.client_view(state.transforms),
            cohort,
            state.memory,
            rng.key(self.seed, "trial"),
            each,
        )

    def _private(self, number: int) -> NoisySum | None:
        if self.noisy is None:
            return None
        canaries, (how, cohort) = self.state.canaries, self.cohort(number)
        noisy = self.noisy.told(len(cohort))
        if canaries is None:
            return noisy
        often = drawn(
            self.setup.sampler, self.setup.population.size, len(canaries), number, rng.key(self.seed, "cohort")
        )
        return replace(noisy, planted=Planted(canaries, number, how, often))

    def _draw(self, number: int) -> tuple[Participation, Cohort]:
        ids, how = self.setup.sampler.sample(self.setup.population.size, number, rng.key(self.seed, "cohort"))
        return how, self.setup.population.cohort(ids, rng.key(self.seed, "round", number, "order"))
