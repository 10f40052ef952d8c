"""Bytes of rounds that nobody has trained: the lengths of their messages, round by round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from torch import Tensor

from atoll.core import PLAYED_ROUNDS, Context, Round
from atoll.tree import Tree


def foretold_bytes(
    round: Round, ctx: Context, state: Tree, pools: Callable[[int], Tensor], rounds: int
) -> dict[str, int]:
    """Of so many rounds: at most, where lengths depend on numbers. `pools`: whose messages count in a round."""
    total, played = {"up": 0.0, "down": 0.0}, min(rounds, PLAYED_ROUNDS)
    for number in range(played):
        at, ids = replace(ctx, number=number), pools(number)
        for way, each in zip(("down", "up"), round.message_bytes(at, state, ids), strict=True):
            total[way] += float(np.broadcast_to(each, len(ids)).sum())
        state = round.after(at, state, ids)
    return {way: int(np.rint(n * rounds / played)) for way, n in total.items()}
