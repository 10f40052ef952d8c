"""What one layer adds to per-example gradients: its share of their squared norms, and of their clipped sum.

A linear layer's gradient is the outer product of the output gradient, d_i, and the input, a_i. So its norm is
|d_i| |a_i|, and the sum with factors f is Σ f_i d_i a_iᵀ: one product, nothing laid out (Goodfellow, 2015; Bu et al.,
2023). A convolution's is d_i (out x pixels) times the patches of a_i. Its weights are few: it is laid out for all
examples at once by one batched product, and lengths and sums are read from that.

Products may be TF32 and still no example counts for more than its length: what a product gave is measured as it is (a
convolution), or the product is made in float64 (a linear layer), which needs no memory for examples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atoll.tasks.kernels import ConvGeometry, Pair, conv_geometry, out_size
from atoll.tree import Tree

MAX_NORM = 1e19  # an example that is longer counts as nothing: what it is multiplied by would lose its digits
_BLOCK = 64  # numbers whose squares are added in float32, so that their length is right to 2e-6
_UNDERFLOW = 1e-18  # in float32 a square below 1.2e-38 is 0: the length that 64 of them have, and a block may lack


class LayerGradients(NamedTuple):
    """Of one layer: every example's squared norm, and total(counted, factors), the clipped sum over examples."""

    square: Tensor
    total: Callable[[Tensor, Tensor], Tree]


def output_shape(layer: nn.Module, input_shape: tuple[int, ...]) -> tuple[int, ...]:
    """What a linear layer or a convolution makes of an example of this shape."""
    if isinstance(layer, nn.Conv2d):
        kernel = (layer.kernel_size[0], layer.kernel_size[1])
        return (layer.out_channels, *out_size((input_shape[1], input_shape[2]), kernel, conv_geometry(layer)))
    assert isinstance(layer, nn.Linear)
    return (layer.out_features,)


def is_exact_product(x: Tensor) -> bool:
    """Is a product as exact as its entries? TF32 would make it longer than the lengths that were computed."""
    return x.device.type == "cpu" or not torch.backends.cuda.matmul.allow_tf32


def example_norms(x: Tensor) -> Tensor:
    """The norm of every example, (B, ...) to (B,) float64; what float32 cannot square is taken for long."""
    flat = x[:, None].flatten(1).float()
    whole = flat.shape[1] // _BLOCK * _BLOCK
    blocks = (flat[:, :whole].reshape(len(flat), whole // _BLOCK, _BLOCK), flat[:, None, whole:])
    block_norms = torch.cat([torch.linalg.vector_norm(part, dim=2) for part in blocks], 1) + _UNDERFLOW
    norms: Tensor = torch.linalg.vector_norm(block_norms, dim=1, dtype=torch.float64)
    return norms


def linear_gradients(layer: nn.Module, output_gradients: Tensor, inputs: Tensor) -> LayerGradients:
    """A linear layer on rows; its bias sees a one."""
    biased = layer.bias is not None

    def total(counted: Tensor, factors: Tensor) -> Tree:
        out = torch.where(counted[:, None], output_gradients * factors[:, None], 0.0)
        counted_inputs = torch.where(counted[:, None], inputs, 0.0)
        weight = (
            out.T @ counted_inputs
            if is_exact_product(out)
            else (out.double().T @ counted_inputs.double()).to(out.dtype)
        )
        return {"weight": weight, "bias": out.sum(0)} if biased else {"weight": weight}

    return LayerGradients(example_norms(output_gradients).square() * (example_norms(inputs).square() + biased), total)


def conv_gradients(layer: nn.Module, output_gradients: Tensor, inputs: Tensor) -> LayerGradients:
    """A convolution: its gradients laid out, (B, out, in, h, w)."""
    assert isinstance(layer, nn.Conv2d)
    rows = output_gradients.flatten(2)
    kernel = (layer.kernel_size[0], layer.kernel_size[1])
    flat = rows @ patches(inputs, kernel, conv_geometry(layer)).mT
    per_example = {"weight": flat.reshape(*rows.shape[:2], layer.in_channels, *kernel)}
    if layer.bias is not None:
        per_example["bias"] = rows.sum(2)

    def total(counted: Tensor, factors: Tensor) -> Tree:
        return {
            k: torch.where(_broadcast(counted, g), g * _broadcast(factors, g), 0.0).sum(0)
            for k, g in per_example.items()
        }

    return LayerGradients(torch.stack([example_norms(g).square() for g in per_example.values()]).sum(0), total)


def patches(x: Tensor, kernel: Pair, geometry: ConvGeometry) -> Tensor:
    """What the kernel sees at each place: (B, in, H, W) to (B, in * h * w, pixels).

    As F.unfold, which on a GPU is one kernel for every example; this is one copy of a view.
    """
    (sh, sw), (ph, pw), (dh, dw) = geometry
    padded = F.pad(x, (pw, pw, ph, ph)) if ph or pw else x
    windows = padded.unfold(2, dh * (kernel[0] - 1) + 1, sh).unfold(3, dw * (kernel[1] - 1) + 1, sw)
    return windows[..., ::dh, ::dw].permute(0, 1, 4, 5, 2, 3).flatten(4).flatten(1, 3)


def _broadcast(row: Tensor, like: Tensor) -> Tensor:
    """One number per example, broadcast over its gradient."""
    return row.reshape(-1, *[1] * (like.dim() - 1))
