"""How long messages are on their way in virtual time, by the devices of `atoll.clock` at both ends.

A message leaves when its sender's uplink is free, and takes it for bytes / rate; then it is on its way as the clock
has it (`transfer_seconds`) over the slower of the sender's uplink and the receiver's downlink, with both latencies.
Against a server without a device of its own this is the clock's upload, and its download. A downlink is not shared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from atoll.clock import DeviceProfile, Devices, transfer_seconds

_IDEAL = Devices().profile(np.zeros(1, np.int64))


@dataclass(frozen=True, eq=False)
class VirtualNetwork:
    """Who has which device: client ids by name; a worker without one has an ideal device and link."""

    devices: Devices = Devices()
    device_of: Mapping[str, int] = field(default_factory=dict)
    slow_start: bool = True

    def among(self, names: Sequence[str]) -> LinkTimes:
        """The devices of these workers."""
        known = {name: self.devices.profile(np.array([id], np.int64)) for name, id in self.device_of.items()}
        return LinkTimes({name: known.get(name, _IDEAL) for name in names}, self.slow_start)


class Departure(NamedTuple):
    """When a message is there, and when its sender's uplink is free again."""

    arrives: float
    free: float


@dataclass(frozen=True, eq=False)
class LinkTimes:
    """The links between some devices."""

    profiles: Mapping[str, DeviceProfile]
    slow_start: bool

    def slowness(self, name: str) -> float:
        return float(self.profiles[name].slowness[0])

    def departure(self, sender: str, receiver: str, nbytes: int, now: float, free: float) -> Departure:
        """Of a message that is ready `now`, where the uplink is free from `free` on."""
        a, b = self.profiles[sender], self.profiles[receiver]
        if a is _IDEAL and b is _IDEAL:
            return Departure(max(now, free), free)
        leaves = max(now, free)
        loss = 1 - (1 - a.loss) * (1 - b.loss)
        rate = np.minimum(a.up, b.down)
        seconds = transfer_seconds(nbytes, rate, a.latency + b.latency, loss, self.slow_start)
        return Departure(leaves + float(seconds[0]), leaves + float(nbytes / a.up[0]))
