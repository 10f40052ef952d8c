"""nn.Sequential that takes a linear layer, a ReLU and a dropout as one, where an engine stacks clients."""

from __future__ import annotations

from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from atoll.tasks.kernels import bias_relu_dropout, takes_bias_relu
from atoll.tasks.keyed_dropout import KeyedDropout


class Sequential(nn.Sequential):
    """nn.Sequential; what follows a product of stacked clients is one pass over it, and one for its gradients.

    The layers stay where they are, with their names and numbers. One that somebody hooked is called as ever.
    """

    def forward(self, x: Tensor) -> Tensor:
        layers = list(self)
        while layers:
            taken = _fused_layers(layers, x)
            x = _together(layers[:taken], x) if taken else layers[0](x)
            del layers[: max(1, taken)]
        return x


def _fused_layers(layers: list[nn.Module], x: Tensor) -> int:
    """How many of the first layers are one pass: a linear layer with a bias, a ReLU and maybe a dropout; or none."""
    first = layers[0]
    if type(first) is not nn.Linear or first.bias is None or [type(x) for x in layers[1:2]] != [nn.ReLU]:
        return 0
    if not isinstance(x, Tensor) or not takes_bias_relu(x) or x.dim() < 2 or not all(map(_plain, layers[:2])):
        return 0
    last = layers[2] if len(layers) > 2 else None
    return 3 if isinstance(last, KeyedDropout) and not last.per_channel and _plain(last) else 2


def _plain(layer: nn.Module) -> bool:
    hooks = layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks
    return not any(hooks) and "forward" not in vars(layer)


def _together(layers: list[nn.Module], x: Tensor) -> Tensor:
    linear, dropout = cast(nn.Linear, layers[0]), layers[2] if len(layers) > 2 else None
    product = F.linear(x, linear.weight)
    if isinstance(dropout, KeyedDropout) and dropout.active and dropout.p < 1:
        return bias_relu_dropout(product, linear.bias, *dropout.draw(), dropout.p)
    activated = bias_relu_dropout(product, linear.bias, None, 0, 0.0)
    return activated if dropout is None else dropout(activated)  # type: ignore[no-any-return]
