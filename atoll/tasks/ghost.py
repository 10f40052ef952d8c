"""Clipped sums of examples' gradients from one backward pass, for models of linear layers and convolutions.

One pass of the whole batch gives what came into each layer, a_i, and what came out wrong, d_i; `parts` makes of them
each example's length and the sum. No gradient of an example is taken by itself, which would need a second axis to
stack: stacked clients keep the products made for them (`products`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import grad

from atoll.tasks.kernels import Conv2d, MaxPool2d
from atoll.tasks.layers import KeyedDropout
from atoll.tasks.models import CNN, MLP, VGG9, ChannelDropout, LeNet, Linear
from atoll.tasks.per_example_norms import LONGEST, image_part, output_shape, row_part
from atoll.tasks.supervised import Supervised
from atoll.tree import Tree

_AROUND = (nn.Sequential, MLP, Linear, LeNet, CNN, VGG9, ChannelDropout)  # call each of their layers once
_EACH = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.Identity, KeyedDropout)  # entry by entry
_POOLS = (nn.MaxPool2d, MaxPool2d, nn.AvgPool2d)
_TAKES = {nn.Linear: 1, Conv2d: 3}  # what learns, and the axes of what it takes of one example


class Layer(NamedTuple):
    """A layer that learns, and the shape of what it takes of one example."""

    name: str
    takes: tuple[int, ...]


def ghost_layers(task: Supervised) -> tuple[Layer, ...]:
    """The layers of a model that this file knows, all that there is to learn; () for other models.

    Nothing between them may mix the examples of a batch, and each must see an example as one row or one image.
    """
    placed = list(task.model.named_modules(remove_duplicate=False))  # a layer in two places is no plain one
    found = tuple(name for name, m in placed if type(m) in _TAKES)
    own = {f"{n}.{k}" if n else k for n in found for k in _learns(task.model.get_submodule(n))}
    learned = {k for k, p in task.model.named_parameters() if p.requires_grad}
    if not all(_plain(m) for _, m in placed) or own != learned or task.compute_dtype is not None:
        return ()
    layers = tuple(Layer(n, shape) for n, shape in task.layer_input_shapes(found).items())
    wide = all(len(x.takes) == _TAKES[type(task.model.get_submodule(x.name))] for x in layers)
    return layers if wide and len(layers) == len(found) else ()


def clipped(
    task: Supervised,
    layers: tuple[Layer, ...],
    params: Tree,
    buffers: Tree,
    batch: Tree,
    factor: Callable[[Tensor], Tensor],
) -> tuple[Tree, Tensor] | None:
    """The sum of factor(|g_i|) g_i over the real examples and all losses; None where inputs have another shape.

    batch["key"] has a key for each example.
    """
    modules = {x.name: task.model.get_submodule(x.name) for x in layers}
    mask, zero = batch["mask"], next(iter(params.values())).new_zeros(())
    still = {x.name: zero.expand(len(mask), *output_shape(modules[x.name], x.takes)) for x in layers}

    def total(shifts: Tree) -> tuple[Tensor, tuple[Tree, Tensor]]:
        losses, seen = task.losses_with_output_offsets(params, buffers, batch, shifts)
        return losses.sum(), (seen, losses)

    wrong, (seen, losses) = grad(total, has_aux=True)(still)
    if any(seen[x.name].shape != (len(mask), *x.takes) for x in layers):
        return None
    parts = {n: (image_part if isinstance(m, Conv2d) else row_part)(m, wrong[n], seen[n]) for n, m in modules.items()}
    norm = torch.stack([p.square for p in parts.values()]).sum(0).sqrt()
    kept = (norm <= LONGEST) & (mask > 0)
    share = torch.where(kept, factor(norm), 0.0).to(zero.dtype)
    sums = {f"{n}.{k}" if n else k: v for n, p in parts.items() for k, v in p.total(kept, share).items()}
    return {k: sums[k] for k in params}, losses


def _learns(layer: nn.Module) -> list[str]:
    return ["weight"] if layer.bias is None else ["weight", "bias"]


def _plain(module: nn.Module) -> bool:
    if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):  # they could do anything
        return False
    if isinstance(module, nn.Flatten):
        return module.start_dim == 1
    if isinstance(module, nn.MaxPool2d) and module.return_indices:
        return False
    return type(module) in (*_TAKES, *_EACH, *_POOLS, *_AROUND)
