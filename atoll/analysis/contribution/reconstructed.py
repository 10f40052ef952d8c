"""What a coalition is worth within one round: the server's step from its clients' recorded updates, measured.

GTG-Shapley (Liu et al., 2022): the experiment is trained once; the models of coalitions are made from what its clients
sent, and all that are asked for together are measured as one stack.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from atoll import rng, tree
from atoll.algorithms import model_of
from atoll.analysis.diff.recording_engine import Recording
from atoll.core import Algorithm, Model, Total
from atoll.engines import measure_each
from atoll.errors import ConfigError
from atoll.experiment import Device, Experiment, Setup, set_up
from atoll.records import RunFolder
from atoll.runs import RunLoop, drive
from atoll.tree import Tree

MOST = 64  # models measured as one stack


@dataclass(frozen=True, eq=False)
class RecordedRound:
    """One round: the server's state before it, what its clients sent, and the algorithm with this round's numbers."""

    number: int
    algorithm: Algorithm
    server: Tree
    after: Tree  # the server's state after it
    ids: Tensor  # (C,) those whose updates counted
    updates: Tree  # rows by client
    weights: Tensor  # (C,)


def check_reconstructible(experiment: Experiment, setup: Setup) -> None:
    """Refuse what is more than one server that averages plain updates."""
    problems = []
    if experiment.transform or experiment.broadcast or experiment.secure is not None:
        problems.append("transform: gtg reads plain updates, and here they are changed on the way. Use --method tmc.")
    if experiment.reducer["name"] != "mean":
        problems.append("reducer: gtg makes means of updates; another reducer is another game. Use --method tmc.")
    if experiment.round["name"] != "central" or experiment.server is not None:
        problems.append("round: gtg needs one server that averages. Use --method tmc.")
    if setup.attack is not None and setup.attack.attack.crafts:
        problems.append(
            f"attack: {setup.attack.name} makes up updates, and gtg reads what clients trained: its coalitions would "
            "be of another training than the one they share out. Use --method tmc, or an attack on data (label_flip)."
        )
    traits = setup.algorithm.traits()
    if traits.partial or traits.pooled:
        problems.append("algorithm: no whole model stands at a server that clients contribute to.")
    if setup.dataset.test is None:
        problems.append("data: has no test data, by which coalitions are valued.")
    if problems:
        raise ConfigError(problems)


@contextmanager
def recorded_rounds(
    experiment: Experiment, device: Device, clients: Setup | None = None
) -> Iterator[tuple[RunLoop, Iterator[RecordedRound]]]:
    """The run, played round by round; every round with what its clients sent.

    With the `clients` of another seed's setup, and its data, where it is given.
    """
    partition = None if clients is None else clients.partition
    dataset = None if partition is None or partition.noise is not None else clients.dataset  # type: ignore[union-attr]
    setup = set_up(experiment, device, dataset, partition)
    check_reconstructible(experiment, setup)
    with tempfile.TemporaryDirectory(prefix="atoll-rounds-") as place, torch.random.fork_rng():
        folder = RunFolder(Path(place) / "run")
        folder.path.mkdir()
        loop = RunLoop(setup, folder)
        yield loop, _rounds(loop)


def _rounds(loop: RunLoop) -> Iterator[RecordedRound]:
    recording = Recording(loop.own, loop.plan.program)
    recording.on = True
    for number in range(loop.experiment.rounds):
        algorithm = loop.plan.context(number).algorithm
        before = tree.map(lambda x: x.detach().clone(), loop.state.round["server"])
        recording.seen = None
        drive(loop.play_round(), recording)
        seen = recording.seen
        if seen is None or not len(seen.kept):
            continue  # nobody came
        ids = seen.cohort.id[seen.kept]
        yield RecordedRound(
            number, algorithm, before, loop.state.round["server"], ids, seen.updates["value"], seen.updates["weight"]
        )


@dataclass(frozen=True, eq=False)
class RoundCoalitions:
    """Values of coalitions of a round's own clients, by their places in it."""

    loop: RunLoop
    round: RecordedRound
    metric: str
    sign: float

    def __call__(self, coalitions: Sequence[int]) -> list[float]:
        values: list[float] = []
        for i in range(0, len(coalitions), MOST):
            values += self._measured(coalitions[i : i + MOST])
        return values

    def _measured(self, coalitions: Sequence[int]) -> list[float]:
        C = len(self.round.ids)
        inside = torch.tensor([[c >> i & 1 for i in range(C)] for c in coalitions], dtype=self.round.weights.dtype)
        models = self._models(inside)
        setup, test = self.loop.setup, self.loop.test
        assert test is not None
        rows, batch = len(test["y"]), setup.experiment.evaluate.batch
        steps = -(-rows // batch)
        plan = torch.arange(steps * batch).clamp(max=rows - 1).reshape(1, steps, batch).expand(len(coalitions), -1, -1)
        count = (rows - torch.arange(steps) * batch).clamp(max=batch).reshape(1, steps).expand(len(coalitions), -1)
        columns, owner = measure_each(setup.task, setup.dataset.decode, test, models, plan, count, stacked=True)
        found = setup.metrics[self.metric].by_group(columns, owner, len(coalitions))
        return [self.sign * float(v) for v in np.asarray(found)]

    def _models(self, inside: Tensor) -> Model:
        """The server's step for every coalition, as one stack; nobody: its model as it was."""
        server, device = self.round.server, self.loop.setup.device
        weights = inside * self.round.weights
        values = tree.map(lambda x: torch.einsum("sc,c...->s...", weights.to(x), x), self.round.updates)
        total, count = weights.sum(1), inside.sum(1)
        key = rng.key(self.loop.setup.experiment.seed, "contribution", self.round.number)

        def step(value: Tree, weight: Tensor, count: Tensor) -> Model:
            moved = model_of(self.round.algorithm.apply(server, Total(value, weight, count), key))
            return tree.where(count > 0, moved, model_of(server))

        safe = torch.where(count > 0, total, torch.ones_like(total))
        stack: Model = vmap(step)(tree.to(values, device), safe.to(device), count.to(device))
        return stack


def value_of(loop: RunLoop, server: Tree, metric: str, sign: float) -> float:
    """The metric of a server's model."""
    test, setup = loop.test, loop.setup
    assert test is not None
    one = tree.map(lambda x: x[None], model_of(server))
    rows = torch.arange(len(test["y"]))[None, None]
    count = torch.tensor([[rows.shape[-1]]])
    columns, owner = measure_each(setup.task, setup.dataset.decode, test, one, rows, count, stacked=True)
    return sign * float(np.asarray(setup.metrics[metric].by_group(columns, owner, 1))[0])
