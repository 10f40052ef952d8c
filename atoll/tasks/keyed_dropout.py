"""Dropout by the key of the forward pass, which says what layers need to know of their batch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from atoll.tasks.kernels import drop

_pass = threading.local()
_CALLS = 10_007  # layers that a model may have before the second call of one meets the first of another


@contextmanager
def forward_pass(mask: Tensor, key: Tensor | None, scored: nn.Module | None = None) -> Iterator[None]:
    """What the layers below need to know of the batch.

    The key is one for the batch, or (B, 2): each row is then drawn as if it were a batch of its own. `scored`: the
    model whose output is read by a loss alone, which takes linear scores.
    """
    before = [getattr(_pass, name, None) for name in ("batch", "calls", "scored")]
    _pass.batch, _pass.calls, _pass.scored = (mask, key), {}, scored
    try:
        yield
    finally:
        _pass.batch, _pass.calls, _pass.scored = before


def batch_mask() -> Tensor:
    """Which examples of the batch are real."""
    mask: Tensor = _pass.batch[0]
    return mask


def is_scored(model: nn.Module) -> bool:
    """Is the output of this model read by a loss alone?"""
    return getattr(_pass, "scored", None) is model


class KeyedDropout(nn.Module):
    """Dropout from counters: example, position, key and call say what is kept, not the order of the draws.

    A layer that is called several times in one forward pass draws anew for each call.
    """

    def __init__(self, p: float, index: int, per_channel: bool) -> None:
        super().__init__()
        self.p, self.index, self.per_channel = p, index, per_channel

    def forward(self, x: Tensor) -> Tensor:
        """Zero a share p and scale up the rest, in training."""
        if not self.active:
            return x
        if self.p >= 1:
            return x * 0
        return drop(x, *self.draw(), self.p, self.per_channel)

    @property
    def active(self) -> bool:
        """Is anything dropped?"""
        return self.training and self.p > 0

    def draw(self) -> tuple[Tensor, int]:
        """The batch's key, and what tells this call of this layer from all others of the model."""
        call = _pass.calls[self.index] = _pass.calls.get(self.index, -1) + 1
        return _pass.batch[1], self.index + call * _CALLS
