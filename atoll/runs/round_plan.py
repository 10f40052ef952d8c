"""What each round of a run is made of: who takes part, with which transforms and settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.core import Algorithm, Chain, Context, Participation, Program, Spec, Train, extract, resolve, schedules_in
from atoll.experiment import Setup
from atoll.rounds import server_key
from atoll.runs.record_line import short, written_settings
from atoll.tree import Tree


class RoundPlan:
    """The rounds of one run. The program is that of the first: engines keep what they made for it."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.seed = setup, setup.experiment.seed
        self.history: list[dict[str, Any]] = []  # the lines of the record, without ids
        self.update_like = setup.update_like()
        self._resolved = resolve(setup.chain, 0, [])
        self._same_algorithm, self._same_chain = (not schedules_in(x) for x in (setup.algorithm, setup.chain))
        self.template, self.spec = self._resolved.bind(setup.spec())
        self._bound: tuple[int, Chain, Spec] = (0, self.template, self.spec)
        state, own = self.template.init(self.update_like)
        self.client_rows: Tree = {
            "algorithm": resolve(setup.algorithm, 0, []).client_state(setup.model),
            "chain": own,
        }
        arriving = self.template.zeros(self.update_like, state, own)
        self.upload = self.template.upload(self.update_like, state, own)
        self.program = Program(setup.algorithm, self.template, setup.reducer, arriving, self.upload)
        self._settings: tuple[Algorithm, Chain, Tree] | None = None
        self._written: dict[str, float] = {}
        self._drawn: tuple[int, Tensor, Participation] | None = None
        self._visible: list[dict[str, Any]] = []
        self._expected = range(0)  # rounds whose draws on the server were foretold

    @property
    def visible_history(self) -> list[dict[str, Any]]:
        """The rounds so far, as schedules and stopping may see them."""
        del self._visible[len(self.history) :]
        self._visible += map(self.setup.visible, self.history[len(self._visible) :])
        return self._visible

    def chain(self, number: int) -> tuple[Chain, Spec]:
        """The transforms of a round and what is certain after them; a schedule sees the rounds before."""
        if self._same_chain:
            return self._bound[1:]
        if self._bound[0] != number:
            now = resolve(self.setup.chain, number, self.visible_history[:number])
            bound = self._bound[1:] if now is self._resolved else now.bind(self.setup.spec())
            self._bound, self._resolved = (number, *bound), now
        return self._bound[1:]

    def sample(self, number: int) -> tuple[Tensor, Participation]:
        """Who takes part: drawn while a device was at work on the round before, or now."""
        if self._drawn is None or self._drawn[0] != number:
            self._drawn = (number, *self._sample(number))
        return self._drawn[1:]

    def key(self, number: int) -> Tensor:
        """What a round draws from."""
        return rng.key(self.seed, "round", number)

    def expect_draws(self, number: int) -> None:
        """Foretell what the transforms of this round and some after it draw from: a CPU makes it in one call."""
        if number in self._expected or self.setup.device.type != "cpu":
            return
        self._expected = range(number, min(number + rng.ahead.ROUNDS, self.setup.experiment.rounds))
        for keys in self.template.server_keys(torch.stack([server_key(self.key(i)) for i in self._expected])):
            rng.ahead.expect(keys)

    def order(self, number: int) -> Tensor:
        """What the order of clients' examples is drawn from."""
        return rng.key(self.seed, "round", number, "order")

    def context(self, number: int) -> Context:
        """One round."""
        algorithm = self.setup.algorithm
        if not self._same_algorithm:
            algorithm = resolve(algorithm, number, self.visible_history)
        chain, _ = self.chain(number)
        return Context(
            number,
            self.program,
            self._on_device(algorithm, chain),
            algorithm,
            self.setup.server_chain(chain, number, self.sample(number)[1]),
            self.setup.population.size,
            self.update_like,
            None if self.template.silent() else self.upload.fixed_bytes,
            lambda: self.sample(number),
            self.order(number),
            task=self.setup.training_task,
        )

    def settings(self, algorithm: Algorithm, before: Tree) -> dict[str, float]:
        """The numbers of the round whose context was asked for last, by name; it began with the state `before`."""
        adapted = {f"algorithm.{name}": before["server"][name].mean() for name in algorithm.traits().adapts}
        return self._written | {name: short(float(x)) for name, x in adapted.items()}

    def trial(self, state: Tree) -> Train:
        """The first round's request, to try an engine on; of a few clients, where nobody comes to the first round."""
        ctx, setup = self.context(0), self.setup
        ids, order = self.sample(0)[0], ctx.order
        if not len(ids):
            ids, order = torch.arange(min(8, setup.population.size)), rng.key(self.seed, "trial")
        ids = ids[: setup.round.most_at_once(len(ids))]
        sent, seen = setup.round.broadcast(ctx, state, ids)
        request = ctx.train(sent, seen, ids, rng.key(self.seed, "trial"), per_client=setup.round.traits().sends_rows)
        return replace(request, order=order)

    def _on_device(self, algorithm: Algorithm, chain: Chain) -> Tree:
        """A round's numbers as tensors: sent there again only if they are others than the last round's."""
        last = self._settings
        if last is None or last[0] is not algorithm or last[1] is not chain:
            settings: Tree = {"algorithm": extract(algorithm), "chain": extract(chain)}
            last = self._settings = (algorithm, chain, tree.to(settings, self.setup.device))
            self._written = written_settings(settings)
        return last[2]

    def _sample(self, number: int) -> tuple[Tensor, Participation]:
        ids, participation = self.setup.sampler.sample(self.setup.population.size, number, rng.key(self.seed, "cohort"))
        return ids, participation
