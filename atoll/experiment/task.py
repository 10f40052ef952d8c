"""What is to be learned, tried on a few examples before anything is run."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from atoll import rng, tree
from atoll.data import Dataset
from atoll.errors import ConfigError, DataError
from atoll.experiment.experiment import Experiment
from atoll.experiment.watched import Better
from atoll.tasks import Classification, Loss, NextToken, Objective, Regression, Supervised, metrics_for
from atoll.tree import Tree


def make_task(experiment: Experiment, dataset: Dataset, module: nn.Module, loss: Loss | None) -> Supervised:
    """The model and its loss, or why they do not go with the data."""
    objective = _objective(dataset, tuple(experiment.task.top_k), loss)
    try:
        task = Supervised(module, objective, _example(dataset), experiment.task.batch_norm)
    except ConfigError as e:
        if dataset.kind == "regression" and whole_numbers(dataset):
            raise ConfigError(f"{e} The targets are whole numbers: if they are classes, give them as integers.") from e
        raise
    _check_gradient(task, _example(dataset))
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


def measured(task: Supervised, dataset: Dataset) -> dict[str, Better]:
    """The metrics that an evaluation of the task's model gives, and which way they get better."""
    model = task.init(rng.key(0))
    with torch.no_grad():
        columns = task.measure(model["params"], model["buffers"], _example(dataset))
    return {name: metric.better for name, metric in metrics_for(dataset.kind, columns).items()}


def whole_numbers(dataset: Dataset) -> bool:
    """Do these targets look like classes that were read as floats?"""
    y = dataset.train["y"]
    return y.shape[1:] == (1,) and bool((y == y.round()).all() and (y >= 0).all()) and len(y.unique()) <= 100


def _objective(dataset: Dataset, top_k: tuple[int, ...], loss: Loss | None) -> Objective:
    own = None if loss is None else _checked(loss)
    if dataset.kind == "classification":
        return Classification(dataset.outputs, top_k, own)
    if dataset.kind == "regression":
        return Regression(own)
    if own is not None:
        raise ConfigError("loss: next tokens are always scored by cross-entropy. Leave it out.")
    return NextToken(dataset.outputs)


def _checked(loss: Loss) -> Loss:
    """The loss; what goes wrong in it is said to be its own."""
    if not callable(loss):
        raise ConfigError(f"loss: must be a function of outputs and targets (got {type(loss).__name__}).")

    def own(out: Tensor, y: Tensor) -> Tensor:
        try:
            value = loss(out, y)
        except (RuntimeError, TypeError, ValueError, IndexError) as e:
            what = f"outputs of shape {tuple(out.shape)} and targets of shape {tuple(y.shape)}"
            raise ConfigError(f"loss: failed on {what}: {e}") from e
        if not isinstance(value, Tensor):
            raise ConfigError(f"loss: gives a {type(value).__name__}, but must give a tensor with one number.")
        return value

    return own


def _example(dataset: Dataset) -> Tree:
    batch = dataset.decode(tree.rows(dataset.train, slice(0, 4)))
    if not isinstance(batch, dict) or "x" not in batch:
        raise DataError(f"data {dataset.name!r}, decode: must give a dict with 'x' and 'y'.")
    return {**batch, "mask": torch.ones(len(batch["y"]))}
