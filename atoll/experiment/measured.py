"""What is measured: the usual metrics of the data, those that are asked for, and the one that leads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from atoll import rng
from atoll.data import Dataset
from atoll.errors import ConfigError
from atoll.experiment.experiment import Experiment
from atoll.experiment.registry import find_builder
from atoll.experiment.task import example_batch
from atoll.experiment.watched import TRAIN_LOSS
from atoll.schema import did_you_mean
from atoll.tasks import METRICS, Metric, NextToken, ScoreFunction, Supervised, better, metrics_for

_IMBALANCED = 0.75  # of the examples in the larger of two classes: from here on accuracy says little


def add_metrics(
    experiment: Experiment, dataset: Dataset, task: Supervised, given: Mapping[str, Any]
) -> dict[str, Metric]:
    """The metrics of a run; what they need is measured from now on. `given` are functions from Python."""
    asked = {name: _metric(name, given) for name in _asked(experiment)}
    asked = {(name.partition(":")[2] or name): metric for name, metric in asked.items()}
    loss = task.objective.loss
    if loss.whole_because:  # no example has one of its own, so it is taken of all rows at once
        asked["loss"] = ScoreFunction(lambda out, y: loss.batch(*_tensors(task, dataset, out, y)), "lower")
    if asked and not isinstance(task.objective, NextToken):
        needed = frozenset(column for metric in asked.values() for column in metric.needs)
        task.objective = replace(task.objective, extra=needed)  # type: ignore[type-var]
    model = task.init(rng.key(0))
    with torch.no_grad():
        columns = task.measure(model["params"], model["buffers"], example_batch(dataset))
    metrics = metrics_for(dataset.kind, columns, asked)
    for name in asked:
        if name not in metrics:
            raise ConfigError(f"metric: {name!r} is not for this data. There are: {', '.join(metrics)}.")
    return metrics


def leading_metric(experiment: Experiment, dataset: Dataset, metrics: Mapping[str, Metric]) -> tuple[str, list[str]]:
    """The metric of the verdict, and what is to be said of that choice."""
    if experiment.metric:
        return experiment.metric.partition(":")[2] or experiment.metric, []
    if dataset.labels is not None and dataset.outputs == 2 and "auroc" in metrics:
        share = float(torch.bincount(dataset.labels, minlength=2).max()) / dataset.examples
        if share > _IMBALANCED:
            return "auroc", [
                f"{100 * share:.0f} % of the examples are of one class, so who always says so has that accuracy: AUROC "
                'leads. For another: metric = "balanced_accuracy", or "accuracy".'
            ]
    return next(iter(metrics)), []


def _asked(experiment: Experiment) -> list[str]:
    lead = [experiment.metric] if experiment.metric and experiment.metric != TRAIN_LOSS else []
    return [*(experiment.evaluate.metrics or []), *lead]


def _metric(name: str, given: Mapping[str, Any]) -> Metric:
    if name in given:
        return _function(name, given[name])
    if name in METRICS:
        return METRICS[name]
    if ":" in name:
        return _function(name.partition(":")[2], find_builder({}, name, "evaluate.metrics"))
    raise ConfigError(f"metric: {name!r} is not known.{did_you_mean(name, METRICS)} Known: {', '.join(METRICS)}.")


def _function(name: str, given: Any) -> ScoreFunction:
    """A function of scores and targets; with "lower" beside it, or by its name, less is better."""
    function, direction = given if isinstance(given, tuple) else (given, better(name))
    if not callable(function) or direction not in ("higher", "lower"):
        raise ConfigError(f"metrics: {name!r} must be a function of scores and targets, or (function, 'lower').")

    def one_number(scores: Any, targets: Any) -> float:
        try:
            return float(function(scores, targets))
        except Exception as e:  # a function of somebody's own may raise anything
            raise ConfigError(
                f"metrics: {name!r} failed on {len(targets)} examples ({type(e).__name__}: {e}). It is given their "
                "scores (n, outputs) and targets, and must give one number."
            ) from e

    return ScoreFunction(one_number, direction)


def _tensors(task: Supervised, dataset: Dataset, out: Any, y: Any) -> tuple[Tensor, Tensor, Tensor]:
    """A group's rows as the loss has them in training."""
    like = dataset.train["y"]
    targets = torch.from_numpy(y).to(task.device, like.dtype).reshape(-1, *like.shape[1:])
    shape = targets.shape if dataset.kind == "regression" else (len(targets), *task.outputs)
    outputs = torch.from_numpy(out).to(task.device, torch.float32).reshape(shape)
    return outputs, targets, torch.ones(len(targets), device=task.device)
