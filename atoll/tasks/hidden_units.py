"""Where a network's hidden units are, found by watching one forward pass: however `forward` is written.

What happens between layers must leave units apart. That cannot be seen; whoever relies on it tries it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from atoll import rng
from atoll.core import UnitAxis, UnitLayer, unit_axes, unit_mask
from atoll.errors import ConfigError
from atoll.tasks.layers import BatchNorm
from atoll.tasks.lora import LoraLinear
from atoll.tree import Tree

_WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_KNOWN = "Use a model of linear, convolutional and BatchNorm layers, such as mlp, cnn or lenet"


def unit_layers(model: nn.Module, run: Callable[[], object]) -> tuple[UnitLayer, ...]:
    """The layers of a model in the order in which `run` calls them; a ConfigError for what has no hidden units."""
    calls: list[tuple[str, nn.Module]] = []
    owners = [(n, m) for n, m in model.named_modules() if _own_tensors(m)]
    handles = [m.register_forward_pre_hook(_recorder(calls, n)) for n, m in owners]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    _check(owners, calls)
    layers: list[UnitLayer] = []
    for name, layer in calls:
        before = next((x for x in reversed(layers) if x.weighted), None)
        layers.append(_layer(name, layer, before))
    return tuple(layers)


def check_units_stay_apart(layers: tuple[UnitLayer, ...], params: Tree, forward: Callable[[Tree], Tensor]) -> None:
    """Refuse a model in which a unit that no layer reads changes what comes out: something else mixes units.

    The one half of all units is cut, and then the other: once with the weights that lead to them, and once only with
    those that read them.
    """
    axes = unit_axes(layers)
    drawn = {k: rng.normal(rng.key("units", k), tuple(x.shape)).to(x) for k, x in params.items()}
    reading = {k: tuple(a for a in axes[k] if a.axis == 1) for k in params}
    for others in (False, True):
        cut, unread = (forward(_half(drawn, along, others)) for along in (axes, reading))
        if not torch.allclose(cut, unread, rtol=1e-3, atol=1e-3 * float(cut.abs().max())):
            raise ConfigError(
                "task.model: its hidden units are mixed between layers, so that none can be cut or exchanged alone. "
                f"{_KNOWN}."
            )


def _half(params: Tree, axes: dict[str, tuple[UnitAxis, ...]], others: bool) -> Tree:
    return {k: x * unit_mask(x, axes[k], torch.tensor(0.5, device=x.device), others) for k, x in params.items()}


def _own_tensors(layer: nn.Module) -> list[str]:
    own = [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]
    return [name for name, _ in own]


def _recorder(calls: list[tuple[str, nn.Module]], name: str) -> Callable[..., None]:
    return lambda layer, args: calls.append((name, layer))


def _check(owners: list[tuple[str, nn.Module]], calls: list[tuple[str, nn.Module]]) -> None:
    for name, layer in owners:
        if isinstance(layer, LoraLinear):
            raise ConfigError(
                f"task.lora: {name or 'the model'!r} has an adapter, whose base is frozen: its hidden units can be "
                "neither cut nor exchanged. Leave task.lora out, or use another algorithm or round."
            )
        if not isinstance(layer, (*_WEIGHTED, BatchNorm)) or getattr(layer, "groups", 1) != 1:
            raise ConfigError(
                f"task.model: {name or 'the model'!r} is a {type(layer).__name__}, which has no hidden units that "
                f"could be told apart. {_KNOWN}."
            )
    names = [name for name, _ in calls]
    twice = [name for name in names if names.count(name) > 1]
    missing = [name for name, _ in owners if name not in names]
    if twice or missing:
        what = f"{twice[0]!r} is used twice" if twice else f"{missing[0]!r} is never used"
        raise ConfigError(f"task.model: {what}, so its hidden units cannot be told apart. {_KNOWN}.")
    if not any(isinstance(layer, _WEIGHTED) for _, layer in calls[:-1]):
        raise ConfigError(f"task.model: has one layer of weights, so there are no hidden units. {_KNOWN}.")


def _layer(name: str, layer: nn.Module, before: UnitLayer | None) -> UnitLayer:
    tensors = tuple(f"{name}.{k}" if name else k for k in _own_tensors(layer))
    if isinstance(layer, BatchNorm):
        units = len(layer.running_mean if layer.tracked else layer.weight)
        return UnitLayer(name, "norm", units, 1, units, tensors)
    if not isinstance(layer, nn.Linear):
        conv = cast("nn.Conv2d", layer)
        return UnitLayer(name, "conv", conv.in_channels, 1, conv.out_channels, tensors)
    units = layer.in_features if before is None else before.outputs
    if layer.in_features % units:
        raise ConfigError(
            f"task.model: {name!r} reads {layer.in_features} numbers from {units} units, which are not the same share "
            "of each. Use a model whose layers follow each other, such as mlp, cnn or lenet."
        )
    return UnitLayer(name, "linear", units, layer.in_features // units, layer.out_features, tensors)
