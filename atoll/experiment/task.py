"""What is to be learned, tried on a few examples before anything is run."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from atoll import rng, tree
from atoll.data import Dataset
from atoll.errors import ConfigError, DataError
from atoll.experiment.experiment import Experiment
from atoll.experiment.registry import build
from atoll.schema import Entry
from atoll.tasks import (
    LOSSES,
    OF_CLASSES,
    Classification,
    Loss,
    NextToken,
    Objective,
    Regression,
    Supervised,
    batch_loss,
    loss_of_one_logit,
)
from atoll.tree import Tree

_PROBED = 256  # examples, and classes, that a loss of one's own is tried on


def make_task(experiment: Experiment, dataset: Dataset, module: nn.Module, loss: Loss | None) -> Supervised:
    """The model and its loss, or why they do not go with the data."""
    objective = _objective(dataset, tuple(experiment.task.top_k))
    try:
        task = Supervised(module, objective, example_batch(dataset), experiment.task.batch_norm)
    except ConfigError as e:
        if dataset.kind == "regression" and whole_numbers(dataset):
            raise ConfigError(f"{e} The targets are whole numbers: if they are classes, give them as integers.") from e
        raise
    if loss is None and experiment.task.loss is not None:
        loss = _named_loss(experiment.task.loss, dataset, task.outputs)
    if loss is not None:
        task.objective = _with_loss(task.objective, loss, task.outputs, dataset.train["y"])
    _check_gradient(task, example_batch(dataset))
    return task


def _check_gradient(task: Supervised, example: Tree) -> None:
    """Refuse a model that nothing can move."""
    model = task.init(rng.key(0))
    if not tree.leaves(model["params"]):
        raise ConfigError("task.model: has no parameters, so there is nothing to learn. Give a model with a layer.")
    params = tree.map(torch.Tensor.requires_grad_, model["params"])
    batch = {**example, "key": torch.zeros(2, dtype=torch.int64)}
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        loss, _ = task.loss(params, model["buffers"], batch)
    if not loss.requires_grad:
        raise ConfigError("loss: does not depend on the model's parameters. Do not detach or round the outputs.")


def whole_numbers(dataset: Dataset) -> bool:
    """Do these targets look like classes that were read as floats?"""
    y = dataset.train["y"]
    return y.shape[1:] == (1,) and bool((y == y.round()).all() and (y >= 0).all()) and len(y.unique()) <= 100


def _objective(dataset: Dataset, top_k: tuple[int, ...]) -> Objective:
    if dataset.kind == "classification":
        return Classification(dataset.outputs, top_k)
    return Regression() if dataset.kind == "regression" else NextToken(dataset.outputs)


def _named_loss(entry: Entry, dataset: Dataset, outputs: tuple[int, ...]) -> Loss:
    """The loss that the entry names, if it is for data of this kind and a model with these outputs."""
    name, fitting = entry["name"], [k for k in LOSSES if (k in OF_CLASSES) == (dataset.kind == "classification")]
    of_what, count = dataset.kind.replace("_", " "), dataset.outputs
    if dataset.kind == "classification" and math.prod(outputs) == 1:
        fitting, of_what, count = ["binary_cross_entropy"], "two classes and a model with one output", 1
    elif dataset.kind == "classification":
        of_what = f"classification by a model with {math.prod(outputs)} outputs"
    if name in LOSSES and name not in fitting:
        raise ConfigError(f"task.loss.name: {name!r} is not for {of_what}. Use one of {', '.join(fitting)}.")
    given = {"targets": dataset.train["y"], "outputs": count}
    loss: Loss = build(LOSSES, entry, where="task.loss", **given)
    return loss


def _with_loss(objective: Objective, loss: Loss, outputs: tuple[int, ...], y: Tensor) -> Objective:
    """With a loss of one's own, tried on outputs of the model's shape and on every class that there is."""
    generator = torch.Generator().manual_seed(0)
    if isinstance(objective, Classification):
        loss = loss_of_one_logit(loss) if math.prod(outputs) == 1 else loss
        y = torch.cat([y[:_PROBED], torch.arange(min(objective.classes, _PROBED))])
        return replace(objective, loss=batch_loss(loss, 3 * torch.randn(len(y), *outputs, generator=generator), y))
    if isinstance(objective, Regression):
        labels = isinstance(loss, nn.BCEWithLogitsLoss) and bool(((y == 0) | (y == 1)).all())
        y = y[:_PROBED]
        own = batch_loss(loss, 3 * torch.randn(y.shape, generator=generator), y)
        return replace(objective, loss=own, labels=labels)
    raise ConfigError("loss: next tokens are always scored by cross-entropy. Leave it out.")


def example_batch(dataset: Dataset) -> Tree:
    """A few examples as a model gets them."""
    batch = dataset.decode(tree.rows(dataset.train, slice(0, 4)))
    if not isinstance(batch, dict) or "x" not in batch:
        raise DataError(f"data {dataset.name!r}, decode: must give a dict with 'x' and 'y'.")
    return {**batch, "mask": torch.ones(len(batch["y"]))}
