"""Ghost clipping: the sum of clipped per-example gradients from one backward pass, for linear layers and convolutions.

One pass of the whole batch gives the inputs of each layer, a_i, and the gradients by its outputs, d_i;
`per_example_norms` makes of them each example's norm and the sum. No per-example gradient is taken by itself, which
would need a second axis to stack: stacked clients keep the products made for them (`batched_conv`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import grad

from atoll.tasks.kernels import Conv2d, MaxPool2d
from atoll.tasks.keyed_dropout import KeyedDropout
from atoll.tasks.models import CNN, MLP, VGG9, ChannelDropout, LeNet, Linear
from atoll.tasks.per_example_norms import MAX_NORM, conv_gradients, linear_gradients, output_shape
from atoll.tasks.sequential import Sequential
from atoll.tasks.supervised import Supervised
from atoll.tree import Tree

# call each of their layers once
_CONTAINERS = (nn.Sequential, Sequential, MLP, Linear, LeNet, CNN, VGG9, ChannelDropout)
_ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.Identity, KeyedDropout)  # entry by entry
_POOLS = (nn.MaxPool2d, MaxPool2d, nn.AvgPool2d)
_INPUT_AXES = {nn.Linear: 1, Conv2d: 3}  # what learns, and the axes of what it takes of one example


class GhostLayer(NamedTuple):
    """A layer that learns, and the shape of one example at its input."""

    name: str
    input_shape: tuple[int, ...]


def ghost_layers(task: Supervised) -> tuple[GhostLayer, ...]:
    """The layers of a model that ghost clipping covers, all that there is to learn; () for other models.

    Nothing between them may mix the examples of a batch, and each must see an example as one row or one image.
    """
    modules = list(task.model.named_modules(remove_duplicate=False))  # a layer in two places is no plain one
    learning = tuple(name for name, m in modules if type(m) in _INPUT_AXES)
    handled = {f"{n}.{k}" if n else k for n in learning for k in _parameter_names(task.model.get_submodule(n))}
    learned = {k for k, p in task.model.named_parameters() if p.requires_grad}
    if not all(_is_supported(m) for _, m in modules) or handled != learned or task.compute_dtype is not None:
        return ()
    layers = tuple(GhostLayer(n, shape) for n, shape in task.layer_input_shapes(learning).items())
    wide = all(len(x.input_shape) == _INPUT_AXES[type(task.model.get_submodule(x.name))] for x in layers)
    return layers if wide and len(layers) == len(learning) else ()


def clipped_gradient_sum(
    task: Supervised,
    layers: tuple[GhostLayer, ...],
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
    zero_offsets = {x.name: zero.expand(len(mask), *output_shape(modules[x.name], x.input_shape)) for x in layers}

    def total(offsets: Tree) -> tuple[Tensor, tuple[Tree, Tensor]]:
        losses, inputs = task.losses_with_output_offsets(params, buffers, batch, offsets)
        return losses.sum(), (inputs, losses)

    output_gradients, (inputs, losses) = grad(total, has_aux=True)(zero_offsets)
    if any(inputs[x.name].shape != (len(mask), *x.input_shape) for x in layers):
        return None
    layer_gradients = {
        n: (conv_gradients if isinstance(m, Conv2d) else linear_gradients)(m, output_gradients[n], inputs[n])
        for n, m in modules.items()
    }
    norm = torch.stack([p.square for p in layer_gradients.values()]).sum(0).sqrt()
    counted = (norm <= MAX_NORM) & (mask > 0)
    factors = torch.where(counted, factor(norm), 0.0).to(zero.dtype)
    sums = {f"{n}.{k}" if n else k: v for n, p in layer_gradients.items() for k, v in p.total(counted, factors).items()}
    return {k: sums[k] for k in params}, losses


def _parameter_names(layer: nn.Module) -> list[str]:
    return ["weight"] if layer.bias is None else ["weight", "bias"]


def _is_supported(module: nn.Module) -> bool:
    if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):  # they could do anything
        return False
    if isinstance(module, nn.Flatten):
        return module.start_dim == 1
    if isinstance(module, nn.MaxPool2d) and module.return_indices:
        return False
    return type(module) in (*_INPUT_AXES, *_ELEMENTWISE, *_POOLS, *_CONTAINERS)
