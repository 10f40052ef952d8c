"""How weights of stacked clients lie in memory where convolutions read and write them at every step."""

from __future__ import annotations

import torch
from torch import Tensor

_CONVOLUTION = 5  # axes of the weights of a stack: (C, out, in, h, w)


def kernel_layout(x: Tensor) -> Tensor:
    """The same numbers; a stack's convolution in new memory, in the order (C, out, h, w, in).

    So the forward pass reads them as they are, and a step adds a gradient to weights that lie alike.
    """
    if x.dim() != _CONVOLUTION:
        return x
    return x.permute(0, 1, 3, 4, 2).clone(memory_format=torch.contiguous_format).permute(0, 1, 4, 2, 3)
