"""nn.Sequential that takes layers as one where they are one pass for an engine that stacks clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atoll.tasks.kernels import ChannelsLastGroupNorm, bias_relu_dropout, takes_bias_relu
from atoll.tasks.keyed_dropout import KeyedDropout


class Sequential(nn.Sequential):
    """nn.Sequential: linear layer, ReLU and dropout are one pass; GroupNorm and ReLU; ReLU comes after max pooling.

    The layers stay where they are, with their names and numbers. One that somebody hooked is called as ever.
    """

    def forward(self, x: Any) -> Any:
        layers = list(self)
        while layers:
            taken, together = _first_together(layers, x)
            x = together(layers[:taken], x)
            del layers[:taken]
        return x


def _first_together(layers: list[nn.Module], x: Any) -> tuple[int, Callable[[list[nn.Module], Any], Any]]:
    """How many of the first layers are taken together, and how."""
    second = layers[1] if len(layers) > 1 else None
    if second is None or not isinstance(x, Tensor) or not (is_plain(layers[0]) and is_plain(second)):
        return 1, _alone
    if isinstance(layers[0], ChannelsLastGroupNorm) and type(second) is nn.ReLU:
        return 2, _norm_relu
    if type(layers[0]) is nn.ReLU and isinstance(second, nn.MaxPool2d) and not second.return_indices:
        return 2, _pool_relu
    if type(layers[0]) is nn.Linear and type(second) is nn.ReLU and _takes_bias(layers[0], x):
        dropout = layers[2] if len(layers) > 2 else None
        keyed = isinstance(dropout, KeyedDropout) and not dropout.per_channel and is_plain(dropout)
        return (3 if keyed else 2), _linear_relu
    return 1, _alone


def is_plain(layer: nn.Module) -> bool:
    """Does calling it do no more than its class says?"""
    hooks = layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks
    return not any(hooks) and "forward" not in vars(layer)


def _alone(layers: list[nn.Module], x: Any) -> Any:
    return layers[0](x)


def _norm_relu(layers: list[nn.Module], x: Tensor) -> Tensor:
    """ReLU before the norm is written down."""
    return layers[0](x, relu=True)  # type: ignore[no-any-return]


def _pool_relu(layers: list[nn.Module], x: Tensor) -> Tensor:
    """max(relu(x)) = relu(max(x)), and so are the gradients: what is nowhere positive has none. Fewer numbers."""
    return torch.relu(layers[1](x))


def _takes_bias(linear: nn.Linear, x: Tensor) -> bool:
    return linear.bias is not None and x.dim() > 1 and takes_bias_relu(x)


def _linear_relu(layers: list[nn.Module], x: Tensor) -> Tensor:
    linear, dropout = cast(nn.Linear, layers[0]), layers[2] if len(layers) > 2 else None
    product = F.linear(x, linear.weight)
    if isinstance(dropout, KeyedDropout) and dropout.active and dropout.p < 1:
        return bias_relu_dropout(product, linear.bias, *dropout.draw(), dropout.p)
    activated = bias_relu_dropout(product, linear.bias, None, 0, 0.0)
    return activated if dropout is None else dropout(activated)  # type: ignore[no-any-return]
