"""Layers whose randomness is keyed and whose state is explicit, so that they can be stacked over clients.

`make_stackable` puts them in place of nn.Dropout, nn.BatchNorm, nn.Conv2d, nn.MaxPool2d, nn.LayerNorm, nn.LSTM and
nn.Sequential in any model. They read the mask and the key of the batch from the forward pass they are in (one per
thread); the rest of the model stays as is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, cast

import torch
from torch import Tensor, nn

from atoll.errors import ConfigError
from atoll.tasks.kernels import (
    ChannelsLastGroupNorm,
    Conv2d,
    LayerNorm,
    MaxPool2d,
    StackableLSTM,
    is_replaceable_conv,
    is_replaceable_layer_norm,
    is_replaceable_lstm,
    is_replaceable_pool,
)
from atoll.tasks.keyed_dropout import KeyedDropout, batch_mask
from atoll.tasks.lora import shared_copy
from atoll.tasks.sequential import Sequential

BatchNormPolicy = Literal["average", "local", "recompute", "freeze", "group"]


class BatchNorm(nn.Module):
    """Batch normalisation over the real examples; the running statistics are state that goes in and out.

    `num_batches_tracked` is there only where it is read: with `momentum=None`, for the mean over all batches so far.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, like: nn.modules.batchnorm._BatchNorm, frozen: bool) -> None:
        super().__init__()
        self.eps, self.frozen, self.momentum = like.eps, frozen, like.momentum
        self.weight, self.bias = like.weight, like.bias
        self.tracked = like.running_mean is not None
        if like.running_mean is not None and like.running_var is not None:
            self.register_buffer("running_mean", like.running_mean.clone())
            self.register_buffer("running_var", like.running_var.clone())
        if self.tracked and like.momentum is None and like.num_batches_tracked is not None:
            self.register_buffer("num_batches_tracked", like.num_batches_tracked.clone())

    def forward(self, x: Tensor) -> Tensor:
        """Normalise by the batch in training, by the running statistics otherwise; in float32 at least."""
        kind = x.dtype
        x = x.float() if kind in (torch.bfloat16, torch.float16) else x
        if (self.training and not self.frozen) or not self.tracked:
            mean, var = self._batch_statistics(x)
        else:
            # an average of variances under noise can fall below zero
            mean, var = self.running_mean, self.running_var.clamp(min=0)
        shape = (1, -1) + (1,) * (x.dim() - 2)
        x = (x - mean.reshape(shape)) * torch.rsqrt(var.reshape(shape) + self.eps)
        x = x if self.weight is None else x * self.weight.reshape(shape) + self.bias.reshape(shape)
        return x.to(kind)

    def moments(self, x: Tensor, about: Tensor) -> tuple[Tensor, Tensor]:
        """The means over the real examples of the values' distances from a point, and of the squares of these."""
        x, mask = x.to(about.dtype), batch_mask()
        over = [d for d in range(x.dim()) if d != 1]
        centred = (x - about.reshape(1, -1, *[1] * (x.dim() - 2))) * mask.reshape(-1, *[1] * (x.dim() - 1))
        n = (mask.sum() * x[0, 0].numel()).clamp(min=1)
        return centred.sum(over) / n, (centred * centred).sum(over) / n

    def _batch_statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mask = batch_mask()
        over = [d for d in range(x.dim()) if d != 1]
        real = mask.reshape(-1, *[1] * (x.dim() - 1)).to(x.dtype)
        n = (mask.sum() * (x[0, 0].numel())).clamp(min=1)
        mean = (x * real).sum(over) / n
        centred = (x - mean.reshape(1, -1, *[1] * (x.dim() - 2))) * real
        var = (centred * centred).sum(over) / n
        if self.tracked and self.training:
            share = self._share()
            unbiased = var.detach() * (n / (n - 1).clamp(min=1))
            self.running_mean = (1 - share) * self.running_mean + share * mean.detach()
            self.running_var = (1 - share) * self.running_var + share * unbiased
        return mean, var

    def _share(self) -> float | Tensor:
        """What a new batch counts in the running statistics."""
        if self.momentum is not None:
            return self.momentum
        self.num_batches_tracked = self.num_batches_tracked + 1
        return 1.0 / self.num_batches_tracked.clamp(min=1)  # noise on updates may bring it below zero


class GroupNorm(ChannelsLastGroupNorm):
    """In place of a BatchNorm, with its weights: each example by itself, in groups of features (Wu and He, 2018).

    As many groups as there can be, 32 at most, with 8 features or more in each; one group, where there are fewer than
    16. Normalised alone, a feature would lose its mean over positions, and at a single position all that it holds.
    """

    def __init__(self, like: nn.modules.batchnorm._BatchNorm, name: str) -> None:
        n = like.num_features
        groups = max(g for g in range(1, _GROUPS + 1) if n % g == 0 and (g == 1 or n // g >= _FEATURES))
        super().__init__(groups, n, like.eps, affine=False)
        self.affine, self.weight, self.bias = like.affine, like.weight, like.bias
        self.replaces = f"{name!r}, {type(like).__name__}({n})"

    def forward(self, x: Tensor, relu: bool = False) -> Tensor:
        """As torch's, but refused where normalising would leave nothing of a group."""
        values = x[0].numel() // self.num_groups
        if values < _VALUES:
            raise ConfigError(
                f"task.batch_norm: 'group' would normalise {self.replaces}, over {values} "
                f"{'value' if values == 1 else 'values'}, of which no more than a sign is left. "
                "Use 'average', 'local', 'recompute' or 'freeze', or a layer with more features there."
            )
        return super().forward(x, relu)


_GROUPS, _FEATURES, _VALUES = 32, 8, 3


def make_stackable(model: nn.Module, policy: BatchNormPolicy = "average") -> nn.Module:
    """A copy of the model with keyed dropout and explicit BatchNorm (or GroupNorm, if that is the policy)."""
    model = shared_copy(model)
    holder = nn.ModuleDict({"model": model})  # so that a model that is itself such a layer can be replaced
    names = {layer: name for name, layer in model.named_modules()}
    replacements: dict[nn.Module, nn.Module] = {}  # a layer that stands in two places is still one layer
    for index, (parent, name, layer) in enumerate(list(_children(holder, set()))):
        if layer not in replacements:
            replacements[layer] = _replacement(layer, index, names[layer], policy)
        if replacements[layer] is not layer:
            parent._modules[name] = replacements[layer]
    return holder["model"]


def _children(module: nn.Module, seen: set[nn.Module]) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Every place where a module stands; the same one may stand in several, which named_children() would hide."""
    for name, child in list(module._modules.items()):
        if child is None:
            continue
        yield module, name, child
        if child not in seen:
            seen.add(child)
            yield from _children(child, seen)


def _replacement(layer: nn.Module, index: int, name: str, policy: BatchNormPolicy) -> nn.Module:
    if isinstance(layer, nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
        return KeyedDropout(layer.p, index, per_channel=True)
    if isinstance(layer, nn.Dropout):
        return KeyedDropout(layer.p, index, per_channel=False)
    if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
        return GroupNorm(layer, name) if policy == "group" else BatchNorm(layer, frozen=policy == "freeze")
    if is_replaceable_conv(layer):
        layer.__class__ = Conv2d  # a copy of ours to change: its weights, hooks and settings stay as they are
    if is_replaceable_pool(layer):
        layer.__class__ = MaxPool2d
    if is_replaceable_lstm(layer):
        layer.__class__ = StackableLSTM
        layer.between = KeyedDropout(cast(nn.LSTM, layer).dropout, index, per_channel=False)
    if type(layer) is nn.GroupNorm:
        layer.__class__ = ChannelsLastGroupNorm
    if is_replaceable_layer_norm(layer):
        layer.__class__ = LayerNorm
    if type(layer) is nn.Sequential:
        layer.__class__ = Sequential
    return layer


def keyed(model: nn.Module) -> bool:
    """Does a forward pass of the prepared model need a key?"""
    return any(isinstance(m, KeyedDropout) and m.p > 0 for m in model.modules())


def norm_names(model: nn.Module) -> tuple[str, ...]:
    """The names of everything that belongs to normalisation layers."""
    kinds = (BatchNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.InstanceNorm1d, nn.InstanceNorm2d)
    norms = [(n, m) for n, m in model.named_modules() if isinstance(m, kinds)]
    return tuple(f"{n}.{k}" if n else k for n, m in norms for k in m.state_dict())


def last_linear(model: nn.Module) -> tuple[str, nn.Linear] | None:
    """The last linear layer, by order of definition."""
    linears = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    return cast("tuple[str, nn.Linear]", linears[-1]) if linears else None
