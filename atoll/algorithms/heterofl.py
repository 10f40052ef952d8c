"""HeteroFL: clients of different strength train networks of different width."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from atoll import tree
from atoll.algorithms.local import begin, descend, difference, gradient, model_of, move
from atoll.algorithms.optimizers import SGD, Optimizer, zero
from atoll.core import (
    ClientGroups,
    Info,
    Model,
    Positive,
    Task,
    Total,
    Traits,
    UnitAxis,
    Update,
    unit_axes,
    unit_mask,
)
from atoll.errors import ConfigError
from atoll.tree import Tree

Width = Annotated[float, Field(gt=0, le=1)]
_Axes = dict[str, tuple[UnitAxis, ...]]


@dataclass(frozen=True)
class WidthClasses(ClientGroups):
    """Groups of clients that hold the first units of every layer."""

    widths: tuple[float, ...]
    task: Task

    def held(self, model: Model, group: int) -> Model | None:
        if self.widths[group] == 1.0:
            return tree.map(lambda x: torch.ones(x.shape), model)  # type: ignore[no-any-return]
        width = torch.tensor(self.widths[group], device=tree.device(model["params"]))
        return _masks(model, unit_axes(self.task.unit_layers()), width)


@dataclass(frozen=True)
class HeteroFL:
    """FedAvg of networks of several widths: the narrow ones are the upper left of the wide one (Diao et al., 2021).

    A client of width r trains the first ceil(r n) of n hidden units of every layer, its class drawn with probability
    `shares` (even, unless said); w_j <- w_j + server_lr * sum n_k (w_kj - w_j) / sum n_k over the clients k that hold
    w_j. `scaler`: in training, what hidden layers put out is divided by r, so that the next layer reads sums of the
    same size. One width of 1 is FedAvg.
    """

    task: Task
    lr: Positive
    widths: tuple[Width, ...] = (1.0,)
    shares: tuple[Annotated[float, Field(gt=0, le=1)], ...] = ()
    scaler: bool = True
    optimizer: Optimizer = SGD()
    server_lr: Positive = 1.0

    def __post_init__(self) -> None:
        check_widths(self.widths, self.shares)

    def traits(self) -> Traits:
        if len(self.widths) == 1:
            return Traits()
        return Traits(groups=WidthClasses(even_shares(len(self.widths), self.shares), self.widths, self.task))

    def init(self, model: Model, key: Tensor) -> Tree:
        return model

    def client_state(self, model: Model) -> Tree:
        return {}

    def send(self, server: Tree) -> Tree:
        return {**model_of(server), "group": zero(server["params"])}

    def start(self, sent: Tree, own: Tree) -> Tree:
        return begin(self.optimizer, self._held(sent))

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        factors = self._factors(carry["params"], self._width(sent))
        seen = {**carry, "params": tree.map(torch.mul, carry["params"], factors)}
        g, seen = gradient(self.task, seen, batch)
        g = tree.map(torch.mul, g, factors)  # the chain rule: the network's weights are a multiple of those kept
        return descend(self.optimizer, {**seen, "params": carry["params"]}, g, self.lr)

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        held = self._masks(model_of(sent), self._width(sent))
        change = difference(carry, sent)
        parts = {"delta": held["params"], "buffers": held["buffers"]}
        return Update(tree.map(torch.mul, change, parts), info.examples), own

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        return move(server, total.mean(), self.server_lr)

    def _width(self, sent: Tree) -> Tensor:
        widths = torch.tensor(self.widths, device=sent["group"].device)
        mine: Tensor = torch.arange(len(widths), device=widths.device) == sent["group"]
        return (widths * mine).sum()

    def _held(self, sent: Tree) -> Model:
        model = model_of(sent)
        masks = self._masks(model, self._width(sent))
        return tree.map(lambda x, m: tree.cast_like(x * m, x), model, masks)  # type: ignore[no-any-return]

    def _masks(self, model: Model, width: Tensor) -> Model:
        return _masks(model, self._axes(), width)

    def _factors(self, params: Tree, width: Tensor) -> Tree:
        """The mask, and 1 / r where the scaler stands behind a layer: every one but the last."""
        axes = self._axes()
        masks: Tree = _masks({"params": params, "buffers": {}}, axes, width)["params"]
        if not self.scaler or not axes:
            return masks
        layers = [layer for layer in self.task.unit_layers() if layer.weighted]
        scaled = {name for layer in layers[:-1] for name in layer.tensors}
        return {name: mask / width if name in scaled else mask for name, mask in masks.items()}

    def _axes(self) -> _Axes:
        return {} if all(width == 1.0 for width in self.widths) else unit_axes(self.task.unit_layers())


def _masks(model: Model, axes: _Axes, width: Tensor) -> Model:
    return {part: {k: unit_mask(x, axes.get(k, ()), width) for k, x in model[part].items()} for part in model}


def even_shares(groups: int, shares: tuple[float, ...]) -> tuple[float, ...]:
    """The shares of clients; the same for every group, unless they are given."""
    return shares or (1.0 / groups,) * groups


def check_widths(widths: tuple[float, ...], shares: tuple[float, ...]) -> None:
    """Refuse classes that leave units or clients out."""
    if not widths:
        raise ConfigError("algorithm.widths: there is none. Give shares of the whole width, such as [1.0, 0.5, 0.25].")
    if max(widths) < 1.0:
        raise ConfigError(
            f"algorithm.widths: the widest is {max(widths):g}, so that a part of the model is never trained. Use 1.0 "
            "for one of them, or a narrower model."
        )
    check_shares(shares, len(widths), "widths")


def check_shares(shares: tuple[float, ...], groups: int, of: str) -> None:
    """Refuse shares of clients that are not one for each group, or leave some clients out."""
    if shares and len(shares) != groups:
        raise ConfigError(
            f"algorithm.shares: {len(shares)} shares of {groups} {of}. Give one for each, or none for even ones."
        )
    if shares and abs(sum(shares) - 1.0) > 1e-6:
        even = ", ".join(f"{x / sum(shares):.3g}" for x in shares)
        raise ConfigError(f"algorithm.shares: sum to {sum(shares):g}, not to 1. Use [{even}].")
