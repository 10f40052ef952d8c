"""Training inside a worker: an experiment's own algorithm, transforms, engine and keys, one client at a time.

With the engine "loop" the messages below give the bits that the round itself gives, since it, too, adds one client
after the other; other engines agree to rounding.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Columns, Context, Info, Model, Reducer, Stack, Total, Trained, Update
from atoll.engines import arithmetic
from atoll.errors import ConfigError
from atoll.experiment import Device, Experiment, Setup, load, set_up
from atoll.records import RunFolder
from atoll.rounds import client_key, server_step
from atoll.runs import RunLoop
from atoll.tree import Tree

_REFUSED = {
    "privacy": "no account of privacy is kept between workers",
    "attack": "attackers would be workers of their own",
    "clock": "time passes on the links of the workers: run(..., network=VirtualNetwork(...))",
}


@dataclass(frozen=True, eq=False)
class LocalTraining:
    """What a worker trains with. Every process makes it from the same experiment, and touches its own client's rows.

    What clients keep between rounds stays here, by client: workers of one process may share it.
    """

    setup: Setup
    loop: RunLoop

    @classmethod
    def of(cls, experiment: Experiment | str | Path | Mapping[str, Any], device: Device = "cpu") -> LocalTraining:
        """From a file, a dict, or an `Experiment`."""
        if not isinstance(experiment, Experiment):
            given = experiment
            experiment = load(given) if isinstance(given, str | Path) else Experiment.parse(given)
        _check(experiment)
        setup = set_up(experiment, device)
        if any(schedule.metrics() for schedule in setup.schedules()):
            raise ConfigError("algorithm: a schedule waits for a metric, and workers measure none. Use another.")
        folder = Path(tempfile.gettempdir()) / "atoll-messages"  # only for state that memory has no room for
        return cls(setup, RunLoop(setup, RunFolder(folder)))

    @property
    def rounds(self) -> int:
        return self.setup.experiment.rounds

    def clients(self) -> range:
        """The ids of all clients."""
        return range(self.setup.population.size)

    def context(self, number: int) -> Context:
        """What round `number` is made of, counted from 0."""
        return self.loop.plan.context(number)

    def key(self, number: int) -> Tensor:
        """What round `number` draws from."""
        return self.loop.plan.key(number)

    def cohort(self, number: int) -> list[int]:
        """Who takes part."""
        ids: list[int] = self.loop.plan.sample(number)[0].tolist()
        return ids

    def steps(self, id: int) -> int:
        """How many batches a client trains on in a round."""
        return int(self.setup.population.steps(torch.tensor([id]))[0])

    def first_state(self) -> Tree:
        """Of the round, before the first one."""
        return self.loop.state.round

    def broadcast(self, number: int, state: Tree) -> Tree:
        """What the clients of a round are sent: {"sent", "view"}."""
        ctx = self.context(number)
        return {"sent": ctx.algorithm.send(state["server"]), "view": ctx.chain.client_view(state["chain"])}

    def train(self, number: int, id: int, broadcast: Tree) -> Trained:
        """One client's round, from what it was sent."""
        ctx, alone = self.context(number), self.setup.round.traits().per_client
        sent, view = ((_stacked(x) if alone else x) for x in (broadcast["sent"], broadcast["view"]))
        request = ctx.train(sent, view, torch.tensor([id]), client_key(self.key(number)), per_client=alone)
        with arithmetic(self.setup.device, self.setup.choice.precision):
            trained: Trained = self.loop.engine.run(request)
        return trained

    def joined(self, bodies: Sequence[Tree]) -> Trained:
        """Several answers as one, in this order: what an engine gives that trains these clients itself."""
        program = self.loop.plan.program
        parts = [read_partial(body["partial"]) for body in bodies if bool(body["finite"].any())]
        none = {"examples": torch.zeros(0), "loss": torch.zeros(0), "finite": torch.zeros(0, dtype=torch.bool)}
        examples, loss, finite = (torch.cat([body[name] for body in bodies] or [none[name]]) for name in none)
        order = finite.nonzero().flatten()
        return Trained.settled(program.reducer.merge_all(parts, program.like), examples, Columns(loss, finite, order))

    def step(self, number: int, state: Tree, trained: Trained, reducer: Reducer[Any] | None = None) -> Tree:
        """The server's state after it; with another reducer than the experiment's, where a protocol has summed."""
        ctx = self.context(number)
        if reducer is not None:
            ctx = replace(ctx, program=replace(ctx.program, reducer=reducer))
        return {**state, **server_step(ctx, state, trained, self.key(number)).state}

    def model(self, state: Tree) -> Model:
        """The model of a state of the round."""
        return self.setup.round.model(state)


def answer(trained: Trained) -> Tree:
    """What came of a request as the body of a message."""
    columns = trained.columns()
    rest = {"examples": trained.examples, "loss": columns.loss, "finite": columns.finite}
    return {"partial": _written(trained.partial), **rest}


def read_partial(body: Tree) -> Any:
    """A partial aggregate from the body of a message."""
    if "info" in body:
        return Stack(Update(body["value"], body["weight"]), Info(**body["info"]))
    return Total(body["value"], body["weight"], body["count"])


def _written(partial: Any) -> Tree:
    if isinstance(partial, Total):
        return {"value": partial.value, "weight": partial.weight, "count": partial.count}
    if isinstance(partial, Stack):
        return {"value": partial.updates.value, "weight": partial.updates.weight, "info": partial.info._asdict()}
    raise ConfigError(
        f"reducer: a {type(partial).__name__} has no message. Use one whose partial aggregate is a Total or a Stack."
    )


def _stacked(one: Tree) -> Tree:
    """A row of it."""
    return tree.map(lambda x: x[None], one) if tree.leaves(one) else one  # type: ignore[no-any-return]


def _check(experiment: Experiment) -> None:
    given = {"privacy": experiment.privacy or experiment.local.privacy, "attack": experiment.attack}
    for name, table in {**given, "clock": experiment.clock}.items():
        if table is not None:
            raise ConfigError(f"{name}: {_REFUSED[name]}. Leave it out, or use `atoll run`.")
