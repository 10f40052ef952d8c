"""Matched averaging: hidden units of different networks are paired before they are averaged."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.core import Model, UnitLayer
from atoll.errors import ConfigError
from atoll.tree import Tree


def matching_orders(models: Tree, weights: Tensor, layers: tuple[UnitLayer, ...], turns: int = 3) -> list[Tensor]:
    """For each hidden layer, (C, units): in which order every network (a row of parameters) has to put its units.

    Layer by layer, from the input on, each network's units are assigned to those of a reference by the least sum of
    squared distances of what leads to them (incoming weights, in the order of the layer before, and biases): one
    `linear_sum_assignment` for each network. The reference is the heaviest network at first, then the weighted mean of
    what was matched, `turns` times (as k-means would). The next layer reads its units in the new order.
    """
    orders = []
    for layer, following in pairwise(layers):
        orders.append(_orders(_incoming(models, layer), weights, turns))
        models = permuted(models, layer, following, orders[-1])
    return orders


def in_order(models: Tree, layers: tuple[UnitLayer, ...], orders: list[Tensor]) -> Tree:
    """Rows of parameters, or of their changes, with all hidden units in these orders: what may be averaged."""
    for (layer, following), order in zip(pairwise(layers), orders, strict=True):
        models = permuted(models, layer, following, order)
    return models


def permuted(models: Tree, layer: UnitLayer, following: UnitLayer, order: Tensor) -> Tree:
    """The rows of models with the units of a layer in another order, (C, units): new unit u is the old order[u].

    What they compute stays the same.
    """
    rows = torch.arange(len(order), device=order.device)[:, None]
    new = {name: models[name][rows, order] for name in layer.tensors}
    positions = torch.arange(following.positions, device=order.device)
    columns = (order[:, :, None] * following.positions + positions).flatten(1)
    name = _weight(following)
    reading = models[name].transpose(1, 2)  # (C, inputs, outputs, ...)
    new[name] = reading[rows, columns].transpose(1, 2).contiguous()
    return {**models, **new}


def check_exchangeable(layers: tuple[UnitLayer, ...], model: Model) -> None:
    """Refuse a model whose layers do not follow each other: units in another order would be other ones."""
    if not layers:
        raise ConfigError("round.name: fedma matches hidden units, and this model's are not known. Use mlp or lenet.")
    norms = [layer for layer in layers if not layer.weighted]
    if norms:
        raise ConfigError(
            f"round.name: fedma matches linear and convolutional layers, and task.model has {norms[0].name!r}, which "
            "normalises. Use a model without it, such as mlp, cnn or lenet."
        )
    broken = [b.name for a, b in pairwise(layers) if a.outputs != b.inputs]
    tensors = {name for layer in layers for name in layer.tensors}
    if broken or tensors != set(model["params"]):
        what = repr(broken[0]) if broken else "one of them"
        raise ConfigError(
            f"round.name: fedma matches layers that follow each other, and in task.model {what} reads others. "
            "Use mlp, cnn or lenet."
        )


def _weight(layer: UnitLayer) -> str:
    return next(name for name in layer.tensors if name.endswith("weight"))


def _incoming(models: Tree, layer: UnitLayer) -> Tensor:
    """(C, units, numbers): what leads to each unit."""
    return torch.cat(
        [models[name].flatten(2) if models[name].dim() > 2 else models[name][..., None] for name in layer.tensors], 2
    )


def _orders(incoming: Tensor, weights: Tensor, turns: int) -> Tensor:
    """(C, units): which of its units each network puts where."""
    points = incoming.double().cpu().numpy()
    shares = (weights.double() / weights.double().sum().clamp(min=1e-30)).cpu().numpy()
    reference = points[int(shares.argmax())]
    for _ in range(turns):
        order = np.stack([_assigned(reference, own) for own in points])
        reference = np.einsum("c,cud->ud", shares, np.take_along_axis(points, order[:, :, None], 1))
    return torch.from_numpy(order).to(incoming.device)


def _assigned(reference: NDArray[np.float64], own: NDArray[np.float64]) -> NDArray[np.int64]:
    """For each unit of the reference, the unit that is paired with it: the least sum of |a - b|^2."""
    # |a|^2 and |b|^2 are in every pairing once, so that the products decide.
    from scipy.optimize import linear_sum_assignment  # slow to import

    return np.asarray(linear_sum_assignment(reference @ own.T, maximize=True)[1])
