"""What a round is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from atoll import rng
from atoll.core import Algorithm, Chain, Engine, Reducer
from atoll.core.engine import Store
from atoll.rounds.private import NoisySum
from atoll.tree import Tree


@dataclass(frozen=True)
class Parts:
    """The templates stay the same objects in every round, so that engines can keep what they made for them.

    A round's numbers come twice: as tensors for the engine (`settings`), in place for the server (`now`, `layers`).
    """

    algorithm: Algorithm  # template
    chain: Chain  # template
    now: Algorithm
    layers: Chain
    settings: Tree
    reducer: Reducer
    engine: Engine
    memory: Store
    statistics: Algorithm | None = None  # re-estimates BatchNorm's statistics after each step, if that is the policy
    meanwhile: Callable[[], None] | None = None  # for the host, while a device is at work
    private: NoisySum | None = None  # where noise on the sum makes the round private


def clients_key(key: Tensor) -> Tensor:
    """What the clients of a round draw from."""
    return rng.fold_name(key, "clients")
