"""nn.LSTM whose recurrent part knows a client axis: torch's own is one operation that vmap has no rule for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atoll.tasks.kernels.recurrent import recurrence, unrolled

States = tuple[Tensor, Tensor]  # h and c, (layers, B, H)


class StackableLSTM(nn.LSTM):
    """nn.LSTM, stacked or not; what it drops between its layers is drawn by `between`."""

    between: Callable[[Tensor], Tensor]

    def forward(self, x: Any, hx: States | None = None) -> Any:  # type: ignore[override]
        """(out, (h_n, c_n)); packed sequences and single texts are left to torch."""
        if not isinstance(x, Tensor) or x.dim() != 3:
            return super().forward(x, hx)
        x = x.transpose(0, 1) if self.batch_first else x
        last: list[States] = []
        for k in range(self.num_layers):
            if k:
                x = self.between(x.transpose(0, 1)).transpose(0, 1)
            x, c = self._layer(k, x, None if hx is None else (hx[0][k], hx[1][k]))
            last.append((x[-1], c))
        h_n, c_n = (torch.stack(parts) for parts in zip(*last, strict=True))
        return x.transpose(0, 1) if self.batch_first else x, (h_n, c_n)

    def _layer(self, k: int, x: Tensor, start: States | None) -> States:
        weight_ih, weight_hh = (cast(Tensor, getattr(self, f"weight_{part}_l{k}")) for part in ("ih", "hh"))
        biases = [cast(Tensor, getattr(self, f"bias_{part}_l{k}")) for part in ("ih", "hh")] if self.bias else []
        bias = biases[0] + biases[1] if biases else weight_ih.new_zeros(len(weight_ih))
        gates = F.linear(x, weight_ih)
        return recurrence(gates, bias, weight_hh) if start is None else unrolled(gates, bias, weight_hh, start=start)


def is_replaceable_lstm(layer: nn.Module) -> bool:
    """Is this an LSTM that can be made one of ours?"""
    return type(layer) is nn.LSTM and not layer.bidirectional and layer.proj_size == 0
