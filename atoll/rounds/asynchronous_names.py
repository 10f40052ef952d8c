"""Asynchronous rounds by the names that a file may give."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from atoll.clock import Barrier
from atoll.errors import ConfigError
from atoll.reducers import StalenessDiscount, StalenessShape
from atoll.rounds.asynchronous import Asynchronous

Clients = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
Steps = Annotated[int, Field(ge=0)]
Power = Annotated[float, Field(ge=0)]
_BUFFER = 10  # where a file names no barrier: FedBuff's
Share = Annotated[float, Field(gt=0, le=1)]


def asynchronous(
    concurrency: Clients = 10,
    buffer: Clients | None = None,
    window: Seconds | None = None,
    staleness: StalenessShape = "polynomial",
    a: Power = 0.5,
    b: Power = 4.0,
    alpha: Share = 1.0,
    mixing: Literal["update", "model"] = "update",
    max_staleness: Steps | None = None,
) -> Asynchronous:
    """A step when `buffer` clients have come back, or `window` seconds after the last one, whichever is first.

    APPFL's three barriers: buffer = 1 is its async, a buffer alone its count, a window alone its window. Neither: a
    buffer of ten.
    """
    buffer = _BUFFER if buffer is None and window is None else buffer
    if mixing == "model" and buffer != 1:
        raise ConfigError(
            f"round.mixing: 'model' mixes one client's model into the server's, and buffer is {buffer}. "
            "Use buffer = 1, or mixing = 'update'."
        )
    barrier = Barrier(buffer, np.inf if window is None else window, max_staleness)
    return Asynchronous(concurrency, barrier, StalenessDiscount(staleness, a, b, alpha), mixing)


def fedasync(
    concurrency: Clients = 10,
    alpha: Share = 0.6,
    staleness: StalenessShape = "polynomial",
    a: Power = 0.5,
    b: Power = 4.0,
    max_staleness: Steps | None = None,
) -> Asynchronous:
    """FedAsync: whoever comes back is mixed in at once, w <- (1 - alpha s) w + alpha s w_k (Xie et al., 2019)."""
    return asynchronous(concurrency, 1, None, staleness, a, b, alpha, "model", max_staleness)


def fedbuff(
    concurrency: Clients = 10,
    buffer: Clients = _BUFFER,
    staleness: StalenessShape = "polynomial",
    a: Power = 0.5,
    b: Power = 4.0,
    max_staleness: Steps | None = None,
) -> Asynchronous:
    """FedBuff: a step when the buffer is full, stale updates over sqrt(1 + staleness) (Nguyen et al., 2022).

    Clients count by their examples, as in every round. In the paper they count alike: transform = ["equal_weights"].
    """
    return asynchronous(concurrency, buffer, None, staleness, a, b, 1.0, "update", max_staleness)
