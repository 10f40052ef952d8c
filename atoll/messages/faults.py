"""What goes wrong in a simulated run: drawn from (seed, link, number of the message), or named one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from atoll.errors import ConfigError
from atoll.messages.worker_topology import WorkerTopology
from atoll.threefry import uniform_at

FaultName = Literal["drop", "duplicate", "delay", "reorder"]
_NAMES: tuple[FaultName, ...] = get_args(FaultName)


@dataclass(frozen=True)
class Faults:
    """Probabilities of each message, faults by (sender, receiver, number from 1), and when which worker dies.

    drop: it never arrives. duplicate: its bytes arrive twice. delay: it is `late_seconds` late, and so is what follows
    it on its link, as on a connection. reorder: it is as late, and what follows it overtakes it, as no connection does.
    Neighbours of a worker that died hear of it `detected_after` seconds later.
    """

    drop: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    reorder: float = 0.0
    late_seconds: float = 1.0
    at: Mapping[tuple[str, str, int], FaultName] = field(default_factory=dict)
    deaths: Mapping[str, float] = field(default_factory=dict)  # seconds, by worker
    detected_after: float = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in _NAMES:
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"faults.{name}: is a probability, from 0 to 1 (got {getattr(self, name)}).")
        times = {"late_seconds": self.late_seconds, "detected_after": self.detected_after}
        for what, seconds in {**times, **{f"deaths.{name}": at for name, at in self.deaths.items()}}.items():
            if not 0 <= seconds < float("inf"):
                raise ConfigError(f"faults.{what}: {seconds} seconds. Give a number from 0 on.")
        odd = [fault for fault in self.at.values() if fault not in _NAMES]
        if odd:
            raise ConfigError(f"faults.at: {odd[0]!r} is not known. Known: {', '.join(_NAMES)}.")

    def check(self, topology: WorkerTopology) -> None:
        """Refuse faults of workers that are not there."""
        for name in (*self.deaths, *(name for sender, receiver, _ in self.at for name in (sender, receiver))):
            topology.check(name)

    def of(self, sender: str, receiver: str, number: int) -> frozenset[FaultName]:
        """What befalls one message."""
        named = self.at.get((sender, receiver, number))
        chances = {name: chance for name in _NAMES if (chance := getattr(self, name))}
        if not chances:
            return frozenset() if named is None else frozenset([named])
        path, numbers = (self.seed, "messages", sender, receiver), np.array([number], np.int64)
        drawn = {name for name, p in chances.items() if uniform_at(path, numbers, _NAMES.index(name))[0] < p}
        return frozenset(drawn if named is None else {*drawn, named})


NO_FAULTS = Faults()
