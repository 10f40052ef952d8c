"""Clipped sums of gradients without the gradients of every example, for models of linear layers.

Example i's gradient of a layer's weights is the outer product of what came out wrong, d_i, and what came in, a_i. So
its length is |d_i| |a_i|, and the sum with factors f is Σ f_i d_i a_iᵀ: one product (Goodfellow, 2015; Bu et al.,
2023).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import grad

from atoll.tasks.layers import KeyedDropout
from atoll.tasks.models.linear import Linear
from atoll.tasks.models.mlp import MLP
from atoll.tasks.supervised import Supervised
from atoll.tree import Tree

_AROUND = (nn.Sequential, MLP, Linear)
_EACH = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.Identity)  # entry by entry


def linear_layers(task: Supervised) -> tuple[str, ...]:
    """The linear layers of a model that has nothing else to learn and computes examples one by one; () for others."""
    placed = list(task.model.named_modules(remove_duplicate=False))  # a layer in two places is no plain one
    alone = all(_plain(m) for _, m in placed)
    found = tuple(name for name, m in placed if type(m) is nn.Linear)
    wanted = {f"{n}.{k}" if n else k for n in found for k in dict(task.model.get_submodule(n).named_parameters())}
    learned = {k for k, p in task.model.named_parameters() if p.requires_grad}
    return found if alone and wanted == learned and task.compute is None else ()


def exact(x: Tensor) -> bool:
    """Is a product as exact as its entries? TF32 would make it longer than the lengths that were computed."""
    return x.device.type == "cpu" or not torch.backends.cuda.matmul.allow_tf32


def clipped(
    task: Supervised,
    names: tuple[str, ...],
    params: Tree,
    buffers: Tree,
    batch: Tree,
    factor: Callable[[Tensor], Tensor],
) -> tuple[Tree, Tensor] | None:
    """The sum of factor(|g_i|) g_i over the real examples and all losses; None where a layer sees more than rows."""
    layers = {n: task.model.get_submodule(n) for n in names}
    mask = batch["mask"]
    like = next(iter(params.values()))
    still = {n: like.new_zeros((len(mask), int(m.out_features))) for n, m in layers.items()}  # type: ignore[arg-type]

    def total(shifts: Tree) -> tuple[Tensor, tuple[Tree, Tensor]]:
        losses, seen = task.shifted(params, buffers, batch, shifts)
        return losses.sum(), (seen, losses)

    wrong, (seen, losses) = grad(total, has_aux=True)(still)
    if any(seen[n].dim() != 2 or len(seen[n]) != len(mask) for n in names):
        return None
    square = torch.stack([wrong[n].square().sum(1) * _came_in(seen[n], m) for n, m in layers.items()]).sum(0)
    kept = torch.isfinite(square) & (mask > 0)
    share = torch.where(kept, factor(square.sqrt()), 0.0)[:, None]
    sums = {}
    for n, m in layers.items():
        out = torch.where(kept[:, None], wrong[n] * share, 0.0)
        sums[f"{n}.weight" if n else "weight"] = out.T @ torch.where(kept[:, None], seen[n], 0.0)
        if m.bias is not None:
            sums[f"{n}.bias" if n else "bias"] = out.sum(0)
    return {k: sums[k] for k in params}, losses


def _came_in(x: Tensor, layer: nn.Module) -> Tensor:
    """The squared length of what came in; the bias sees a one."""
    return x.square().sum(1) + (layer.bias is not None)


def _plain(module: nn.Module) -> bool:
    if isinstance(module, nn.Flatten):
        return module.start_dim == 1
    if isinstance(module, KeyedDropout):
        return module.p == 0
    return type(module) in (nn.Linear, *_EACH, *_AROUND)
