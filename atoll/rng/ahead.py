"""Normal numbers for rounds to come, in one call: the same bits as when each is drawn alone.

A few hundred numbers take 0.2 ms on a CPU, nearly all of it starting a hundred and fifty operations on short arrays;
for 32 keys at once that is paid once. Whoever knows the keys of later rounds says so (`expect`). It is a memory of a
pure function: what was not expected, or is too long, is drawn when it is asked for.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from atoll.cpu_threads import cpu_threads
from atoll.rng import host
from atoll.rng.draws import normal_of_words

ROUNDS = 32  # whose keys are worth expecting at once
SMALL = 1 << 16  # numbers that one thread draws sooner than several, which would wait for each other
_BLOCKS = 64  # runs in lockstep, times transforms that draw; those heard of longest ago are forgotten

Words = tuple[int, int]


@dataclass
class KeyBlock:
    """Keys in the order in which they will be asked for, and what was drawn from some of them."""

    keys: Tensor  # (R, 2), on the host
    places: dict[Words, int]
    drawn: dict[int, tuple[int, Tensor]] = field(default_factory=dict)  # n: the place of the first row, and rows of n

    def normal(self, place: int, n: int) -> Tensor | None:
        """The numbers of one key; None where so many are not worth drawing together."""
        first, rows = self.drawn.get(n, (0, None))
        if rows is None or not first <= place < first + len(rows):
            together = min(len(self.keys) - place, SMALL // max(1, n))
            if together < 2:
                return None
            first, rows = self.drawn[n] = place, normal_of_keys(self.keys[place : place + together], n)
        return rows[place - first].clone()  # whoever gets it may write in it


_expected: OrderedDict[Words, KeyBlock] = OrderedDict()  # by the first key
_places: dict[Words, KeyBlock] = {}


def expect(keys: Tensor) -> None:
    """Keys (R, 2) that will be drawn from, in this order, as far as anybody knows."""
    words = [(a, b) for a, b in keys.tolist()]
    if not words:
        return
    known = _expected.get(words[0])
    if known is None or list(known.places) != words:  # else a run beside this one has the same seed
        block = _expected[words[0]] = KeyBlock(keys, {w: i for i, w in enumerate(words)})
        _places.update(dict.fromkeys(words, block))
    _expected.move_to_end(words[0])
    while len(_expected) > _BLOCKS:
        forget(_expected.popitem(last=False)[1])


def forget(block: KeyBlock) -> None:
    """Its keys are drawn from one by one again."""
    for words in block.places:
        if _places.get(words) is block:
            del _places[words]


def normal(key: Tensor, n: int) -> Tensor | None:
    """`rng.normal_dp(key, (n,))` of a key on the host, if it was expected and n is small."""
    if not _places or key.device.type != "cpu":
        return None
    a, b = key.tolist()
    block = _places.get((a, b))
    return None if block is None else block.normal(block.places[a, b], n)


def normal_of_keys(keys: Tensor, n: int) -> Tensor:
    """`rng.normal_dp(key, (n,))` of each key (R, 2) on the host: (R, n)."""
    half = (n + 1) // 2
    counters = np.arange((3 * half + 1) // 2, dtype=np.uint32)
    pairs = host.bits_at(keys, counters, np.zeros_like(counters))
    words = host.halves(pairs)[:, : 3 * half].reshape(len(pairs), 3, half)
    with cpu_threads(1 if words.size < 2 * SMALL else None):
        return normal_of_words(torch.from_numpy(words), n)
