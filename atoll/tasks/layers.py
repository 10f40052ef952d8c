"""Layers whose randomness is keyed and whose state is explicit, so that they can be stacked over clients.

`make_stackable` puts them in place of nn.Dropout, nn.BatchNorm, nn.Conv2d, nn.MaxPool2d and nn.LSTM in any model. They
read the mask and the key of the batch from the forward pass they are in (one per thread); the rest of the model stays
as is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, cast

import torch
from torch import Tensor, nn

from atoll.errors import ConfigError
from atoll.tasks.kernels import (
    ChannelsLastGroupNorm,
    Conv2d,
    MaxPool2d,
    Sequential,
    StackableLSTM,
    is_fusible_sequence,
    is_replaceable_conv,
    is_replaceable_lstm,
    is_replaceable_pool,
)
from atoll.tasks.lora import shared_copy

BatchNormPolicy = Literal["average", "local", "recompute", "freeze", "group"]

_pass = threading.local()
_CALLS = 10_007  # layers that a model may have before the second call of one meets the first of another


@contextmanager
def forward_pass(mask: Tensor, key: Tensor | None) -> Iterator[None]:
    """What the layers below need to know of the batch.

    The key is one for the batch, or (B, 2): each row is then drawn as if it were a batch of its own.
    """
    before = getattr(_pass, "batch", None), getattr(_pass, "calls", None)
    _pass.batch, _pass.calls = (mask, key), {}
    try:
        yield
    finally:
        _pass.batch, _pass.calls = before


class KeyedDropout(nn.Module):
    """Dropout from counters: example, position, key and call say what is kept, not the order of the draws.

    A layer that is called several times in one forward pass draws anew for each call.
    """

    def __init__(self, p: float, index: int, per_channel: bool) -> None:
        super().__init__()
        self.p, self.index, self.per_channel = p, index, per_channel

    def forward(self, x: Tensor) -> Tensor:
        """Zero a share p and scale up the rest, in training."""
        if not self.training or self.p == 0:
            return x
        if self.p >= 1:
            return x * 0
        rows = x.shape[0]
        wide = x.shape[1] if self.per_channel else x[0].numel()
        call = _pass.calls[self.index] = _pass.calls.get(self.index, -1) + 1
        keep = _keep_mask(_pass.batch[1], self.index + call * _CALLS, (rows, wide), self.p, x.device)
        shape = (rows, wide) + (1,) * (x.dim() - 2) if self.per_channel else x.shape
        return torch.where(keep.reshape(shape), x * (1.0 / (1.0 - self.p)), 0.0)


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
        x, mask = x.to(about.dtype), _pass.batch[0]
        over = [d for d in range(x.dim()) if d != 1]
        centred = (x - about.reshape(1, -1, *[1] * (x.dim() - 2))) * mask.reshape(-1, *[1] * (x.dim() - 1))
        n = (mask.sum() * x[0, 0].numel()).clamp(min=1)
        return centred.sum(over) / n, (centred * centred).sum(over) / n

    def _batch_statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mask, _ = _pass.batch
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
    for layer in holder.modules():
        if is_fusible_sequence(layer):
            layer.__class__ = Sequential
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
    return layer


def _keep_mask(key: Tensor, index: int, shape: tuple[int, int], p: float, device: torch.device) -> Tensor:
    """True with probability 1 - p (to 16 bits), addressed by key, layer, row and column.

    A bijective 32-bit finaliser over counters, in place, two draws a word: Threefry costs ten times as much, and the
    masks of a CNN would take longer than its convolutions. Rows do not depend on how many there are.
    """
    rows, wide = shape
    half = (wide + 1) // 2
    word = _signed((key[..., 0] ^ (key[..., 1] << 1) ^ (index * 0x9E3779B9)) & 0xFFFFFFFF)
    first, word = (1, word[:, None]) if key.dim() == 2 else (rows, word)
    x = torch.arange(first * half, dtype=torch.int32, device=device).mul_(_ODD).reshape(first, half) + word
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF)).mul_(0x7FEB352D)
    x.bitwise_xor_((x >> 15).bitwise_and_(0x1FFFF)).mul_(0x846CA68B - 2**32)
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))
    least = (round(p * 2**16) - 2**15) << 16  # the upper 16 bits of x, and then the lower, as signed numbers
    return torch.cat([x >= least, (x << 16) >= least], 1)[:, :wide]


_ODD = 0x9E3779B1 - 2**32


def _signed(word: Tensor) -> Tensor:
    """A 32-bit word held in int64 as int32."""
    return ((word ^ 0x80000000) - 0x80000000).to(torch.int32)


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
