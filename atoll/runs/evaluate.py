"""Measuring a run: the server's model on the test data, and every client's model on its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll import rng, tree
from atoll.core import Chain, Context, Evaluate, Evaluated, Model, Program, Train
from atoll.data import Partition, Population
from atoll.engines import EvaluationData
from atoll.errors import DivergenceError
from atoll.experiment import EvaluateTable, Setup
from atoll.reducers import Collect
from atoll.runs.drivers import Asking
from atoll.tasks import spread
from atoll.tree import Tree

_WHOLE = 100  # models of clients that are measured on the test data, at most
_GPU_BATCH = 4096  # examples of one model at a time that keep a GPU busy
_BYTES = 1 << 30  # of clients' models at a time
Table = dict[str, NDArray[np.float64]]


@dataclass
class Evaluation:
    """What one evaluation found: flat central metrics, their spread over clients, and every client's own."""

    central: dict[str, float]
    clients: dict[str, dict[str, float]]
    after: dict[str, dict[str, float]] | None
    each: dict[str, Any]
    beside: dict[str, dict[str, float]]  # central metrics of the round's other models
    attack: dict[str, float] | None = None  # its success, and the worst honest client


def evaluation_data(setup: Setup, columns: Tree, test: Tree | None) -> EvaluationData:
    """What a run's models are measured on."""
    table, seed = setup.experiment.evaluate, setup.experiment.seed
    clients = len(measured_clients(setup))
    return EvaluationData(
        setup.task,
        lambda _: setup.metrics,
        setup.dataset.decode,
        max(table.batch, _GPU_BATCH) if setup.device.type == "cuda" else table.batch,
        columns,
        _own_rows(setup.held or setup.training, clients, table),
        rng.key(seed, "measured", "own rows"),
        test,
        None if test is None else _few_rows(len(test["y"]), table.rows, seed),
        table.batch,
        max(1, min(1024, int(_BYTES // max(1, tree.nbytes(setup.model))))),
        _probe(setup),
    )


def _probe(setup: Setup) -> Tree | None:
    """What an attack's success is measured on, on the device."""
    probe = None if setup.attack is None else setup.attack.probe
    return None if probe is None else tree.to(probe, setup.device)


def measured_clients(setup: Setup) -> Tensor:
    """Those that get metrics of their own: never the server, where it has data."""
    return _chosen(setup.clients, setup.experiment.evaluate.clients, setup.experiment.seed)


class Evaluator:
    """Knows whom to measure, and asks for it."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.table = setup, setup.experiment.evaluate
        self.ids = measured_clients(setup)
        traits = setup.algorithm.traits()
        self.after = self.table.after and not traits.pooled
        self.personal = traits.personal or setup.round.traits().per_client
        self.partial = traits.partial or setup.round.traits().partial
        self.better = {k: m.better for k, m in setup.metrics.items()}
        self.snapshot = Program(setup.snapshot, Chain(), Collect(), setup.model)

    def __call__(self, ctx: Context, state: Tree, key: Tensor) -> Asking[Evaluation]:
        """Measure the state as it is now."""
        before, after = {}, None
        if len(self.ids):
            before = yield from self._before(ctx, state, key)
        if self.after and len(self.ids):
            after = yield from self._own_models(ctx, state, key, "own", self.ids, trained=True)
        central = yield from self._central(ctx, state, key)
        clients = None if after is None else self._spread(after)
        beside = yield from self._beside(state)
        attack = None if self.setup.attack is None else (yield from self._attack(ctx, state, key, before))
        return Evaluation(central, self._spread(before), clients, self._each(before, after), beside, attack)

    def _attack(self, ctx: Context, state: Tree, key: Tensor, before: Table) -> Asking[dict[str, float]]:
        """The share of the probe that is what the attack wants, and the worst of the honest clients measured."""
        plan, found = self.setup.attack, dict[str, float]()
        assert plan is not None
        if plan.probe is not None:
            table = yield from self._on_common(ctx, state, key, "probe")
            if "accuracy" in table:  # else models are the clients' own, and no client is measured
                found["success"] = table["accuracy"]
        honest = ~plan.mask[self.ids].numpy()
        if honest.any() and self.setup.metric in before:
            worst = np.nanmin if self.better[self.setup.metric] == "higher" else np.nanmax
            found["worst_honest"] = float(worst(before[self.setup.metric][honest]))
        return found

    def _beside(self, state: Tree) -> Asking[dict[str, dict[str, float]]]:
        measured: dict[str, dict[str, float]] = {}
        if self.setup.dataset.test is None:
            return measured
        round = self.setup.round
        for models, together in ((round.beside(state), False), (round.ensembles(state), True)):
            for name, model in models.items():
                table = yield from self._one_model(model, "test", together)
                measured[name] = {k: float(v[0]) for k, v in table.items()}
        return measured

    def _central(self, ctx: Context, state: Tree, key: Tensor) -> Asking[dict[str, float]]:
        return {} if self.setup.dataset.test is None else (yield from self._on_common(ctx, state, key, "test"))

    def _on_common(
        self, ctx: Context, state: Tree, key: Tensor, on: Literal["test", "probe"]
    ) -> Asking[dict[str, float]]:
        """Metrics of the server's model on what is the same for all clients."""
        if self.partial:  # no server model is whole: the mean over clients of their own models' metrics
            table = yield from self._own_models(ctx, state, key, on, self.ids[:_WHOLE], trained=False)
            return {k: float(v.mean()) for k, v in table.items()}
        table = yield from self._one_model(self.setup.round.model(state), on)
        return {k: float(v[0]) for k, v in table.items()}

    def _before(self, ctx: Context, state: Tree, key: Tensor) -> Asking[Table]:
        if self.personal:
            return (yield from self._own_models(ctx, state, key, "own", self.ids, trained=False))
        return (yield from self._one_model(self.setup.round.model(state), "own"))

    def _one_model(self, model: Model, on: Literal["test", "own", "probe"], together: bool = False) -> Asking[Table]:
        pending = yield Evaluate(on, self.ids, model, together=together)
        answer: Evaluated = pending.result()
        return answer.metrics

    def _own_models(
        self, ctx: Context, state: Tree, key: Tensor, on: Literal["test", "own", "probe"], ids: Tensor, trained: bool
    ) -> Asking[Table]:
        """What each of these clients predicts with, before or after training."""
        sent, _ = self.setup.round.broadcast(ctx, state, ids)
        settings = {"algorithm": {"inner": ctx.settings["algorithm"]}, "chain": {}}
        steps, per_client = None if trained else 0, self.setup.round.traits().sends_rows
        asked = Train(self.snapshot, settings, sent, {}, ids, key, key, per_client, None, steps, "read")
        pending = yield Evaluate(on, ids, snapshot=asked)
        answer: Evaluated = pending.result()
        if not answer.finite.all() and self.setup.experiment.on_divergence == "stop":
            bad = ids.numpy()[~answer.finite].tolist()
            raise DivergenceError(f"the models of clients {bad} are not finite. Lower algorithm.lr.")
        return answer.metrics

    def _spread(self, table: Table) -> dict[str, dict[str, float]]:
        return {k: spread(v, self.better[k]) for k, v in table.items()}

    def _each(self, before: Table, after: Table | None) -> dict[str, Any]:
        return {
            "ids": self.ids.tolist(),
            "examples": self.setup.training.sizes_of(self.ids).tolist(),
            "on": "training data" if self.setup.held is None else "holdout",
            "before": {k: v.tolist() for k, v in before.items()},
            "after": None if after is None else {k: v.tolist() for k, v in after.items()},
        }


def _chosen(population: int, clients: int | str, seed: int) -> Tensor:
    """The clients to measure: all of them, or the same ones in every round."""
    if clients == "all" or int(clients) >= population:
        return torch.arange(population)
    return rng.distinct(rng.key(seed, "measured"), population, int(clients)).sort().values


def _few_rows(examples: int, rows: int | str, seed: int) -> Tensor | None:
    """The rows of the test data to measure, the same ones in every round; None: all of them."""
    if rows == "all" or int(rows) >= examples:
        return None
    return rng.distinct(rng.key(seed, "measured", "test rows"), examples, int(rows)).sort().values


def _own_rows(partition: Partition, clients: int, table: EvaluateTable) -> Population:
    """How each of so many clients reads its own rows: all of them, or its part of `rows`."""
    each = max(1, int(table.rows) // max(1, clients)) if table.rows != "all" else None
    if each is None or each >= int(partition.sizes.max()):
        return Population(partition, table.batch, shuffle=False)
    steps = -(-each // table.batch)
    return Population(partition, each // steps, max_steps=steps)
