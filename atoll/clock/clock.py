"""The clock of a run: a pure function from a round's work to its timestamps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from atoll.clock.clock_table import ClockTable, DropoutMoment
from atoll.clock.devices import DeviceProfile, Devices
from atoll.clock.dropouts import lost_clients
from atoll.clock.quantities import Floats, Ints
from atoll.clock.timeline import ABSENT, COUNTED, DROPPED, LATE, Overhead, Timeline
from atoll.clock.traces import Intervals, read_availability
from atoll.clock.transfer import transfer_seconds
from atoll.clock.waiting import Patience
from atoll.threefry import uniform_at

# Places of a client's draws in a round.
_REACHED, _DROPS, _MOMENT, _SHARE, _RANK = range(5)
_NO_OVERHEAD = Overhead()
_MOMENTS = ("download", "training", "upload")


class Trips(NamedTuple):
    """The work of clients that are sent a model at one moment, (C,) each. What never happens is inf."""

    received: Floats
    sent: Floats
    arrived: Floats
    heard: Floats  # by then the server knows that it comes, or that it does not
    absent: NDArray[np.bool_]  # out of reach to begin with
    lost: NDArray[np.bool_]  # on the way, the absent among them
    compressed: Floats
    encrypted: Floats


class _Lost(NamedTuple):
    """When each client is lost, in which of the three phases (3: in none), and who was not there to begin with."""

    at: Floats
    phase: Ints
    absent: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Clock:
    """Devices, their reliability, and the server's patience. Draws are addressed by (seed, round, client id)."""

    devices: Devices = Devices()
    seconds_per_step: float | None = 0.0  # None: measured, when the run begins
    slow_start: bool = True
    availability: float | Intervals = 1.0  # a probability, or when who can be reached
    dropout: float = 0.0
    dropout_moment: DropoutMoment = "any"
    patience: Patience = Patience()
    seed: int = 0
    seconds_to_compress: float | None = 0.0  # None: measured, when the run begins
    dropout_correlation: float = 0.0
    propensity: Floats | None = None  # (N,), mean 1: how much more than the mean client each is lost

    @classmethod
    def of(
        cls,
        table: ClockTable,
        seed: int,
        population: int,
        names: Sequence[str] = (),
        wanted: int | None = None,
        propensity: Floats | None = None,
    ) -> Clock:
        """As a file asks for it. `wanted`: how many of those asked a server waits for, with over-selection."""
        devices = Devices.of(table, seed, population, names)
        path, share = (table.availability, 1.0) if isinstance(table.availability, str) else (None, table.availability)
        available = read_availability(path, population, names, table.repeat) if path else share or 1.0
        asked = (table.seconds_per_step, table.seconds_to_compress)
        seconds, compressing = (None if x == "measured" else float(x) for x in asked)
        deadline = np.inf if table.deadline is None else table.deadline
        patience = Patience(deadline, wanted, table.min_reports, table.grace)
        unreliable = available, table.dropout, table.dropout_moment
        together = table.dropout_correlation or 0.0, propensity
        return cls(devices, seconds, table.slow_start, *unreliable, patience, seed, compressing, *together)

    @property
    def leaves_out(self) -> bool:
        """Could somebody who was asked not be in the sum?"""
        return self.dropout > 0 or self.availability != 1.0 or self.patience.leaves_out

    def timeline(
        self,
        number: int,
        ids: Ints,
        steps: Ints,
        down: float | Floats,
        up: float | Floats,
        start: float,
        seconds_per_step: float | None = None,
        overhead: Overhead | None = None,
        seconds_to_compress: float | None = None,
    ) -> Timeline:
        """Round `number`, counted from 0: `steps` of each client, bytes to and from each.

        A protocol's messages are one after its client's training: its bytes with the update's, its other round trips by
        their latency. What some clients do for all, and then what the server computes, is at the end of the round.
        """
        pace = self.seconds_per_step if seconds_per_step is None else seconds_per_step
        compressing = self.seconds_to_compress if seconds_to_compress is None else seconds_to_compress
        assert pace is not None
        assert compressing is not None
        extra = overhead or Overhead()
        trips = self.trips(number, ids, steps, down, up, start, pace, extra, compressing)
        wait = self.patience.wait(start, trips.arrived, trips.heard, self.rank(number, ids))
        states = [trips.absent, trips.lost, ~wait.counted]
        status = np.select(states, [ABSENT, DROPPED, LATE], COUNTED).astype(np.int8)
        roles = self._roles(extra, self.devices.profile(ids))[wait.counted]
        end = wait.end + (0.0 if wait.void else extra.server_seconds + roles.max(initial=0.0))
        times = trips.received, trips.sent, trips.arrived
        timeline = Timeline(start, end, ids, steps, *times, status, wait.void, down, up, pace)
        if compressing:
            timeline = replace(timeline, seconds_to_compress=compressing, compressed=trips.compressed)
        return timeline if overhead is None else replace(timeline, encrypted=trips.encrypted, overhead=overhead)

    def trips(
        self,
        number: int,
        ids: Ints,
        steps: Ints,
        down: float | Floats,
        up: float | Floats,
        start: float,
        pace: float,
        overhead: Overhead = _NO_OVERHEAD,
        compressing: float = 0.0,
    ) -> Trips:
        """What clients do that are sent a model at `start`, whoever waits for them; a client once in each `number`."""
        *times, compressed, encrypted = self.undisturbed(ids, steps, down, up, start, pace, overhead, compressing)
        lost = self._lost(number, ids, start, (times[0], times[1], times[2]))
        received, sent, arrived = (np.where(lost.phase <= i, np.inf, t) for i, t in enumerate(times))
        heard = np.minimum(lost.at, times[-1])
        return Trips(received, sent, arrived, heard, lost.absent, lost.phase < len(times), compressed, encrypted)

    def undisturbed(
        self,
        ids: Ints,
        steps: Ints,
        down: float | Floats,
        up: float | Floats,
        start: float | Floats,
        pace: float,
        overhead: Overhead = _NO_OVERHEAD,
        compressing: float = 0.0,
    ) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        """(C,) each, if nobody is lost: received, sent, arrived; and seconds of compressing and encrypting."""
        device = self.devices.profile(ids)
        received = start + transfer_seconds(down, device.down, device.latency, device.loss, self.slow_start)
        encrypted = overhead.client_seconds * device.slowness + 2 * overhead.round_trips * device.latency
        compressed = compressing * device.slowness
        sent = received + steps * pace * device.slowness + compressed + encrypted
        arrived = sent + transfer_seconds(up, device.up, device.latency, device.loss, self.slow_start)
        return received, sent, arrived, compressed, encrypted

    def joint_seconds(self, ids: Ints, overhead: Overhead) -> tuple[Floats, float]:
        """Of a protocol that begins when all of these clients are there: of each, and until the server has its sum."""
        device = self.devices.profile(ids)
        links = ((overhead.down, device.down), (overhead.up, device.up))
        seconds = overhead.client_seconds * device.slowness + 2 * overhead.round_trips * device.latency
        for nbytes, rate in links:
            seconds = seconds + transfer_seconds(nbytes, rate, device.latency, device.loss, self.slow_start)
        last = seconds.max(initial=0.0) + self._roles(overhead, device).max(initial=0.0)
        return seconds, float(last) + overhead.server_seconds

    def reaches(self, number: int, ids: Ints, now: float) -> NDArray[np.bool_]:
        """Who can be sent something now."""
        if self.availability == 1.0:
            return np.ones(len(ids), bool)
        reached: NDArray[np.bool_] = self._reached_until(number, ids, now) > now
        return reached

    def next_reach(self, ids: Ints, now: float) -> float:
        """When the first of these clients that are out of reach can be reached again; inf: not in this trace."""
        return self.availability.next_start(ids, now) if isinstance(self.availability, Intervals) else np.inf

    def rank(self, number: int, ids: Ints) -> Floats:
        """Of reports at one moment the one of lower rank is first."""
        return self._draw(number, ids, _RANK)

    def _roles(self, extra: Overhead, device: DeviceProfile) -> Floats:
        """Seconds in which all wait for a role, if it falls on this client; the slowest of them is reckoned with."""
        if not (extra.role_up or extra.role_down or extra.role_seconds):
            return np.zeros_like(device.slowness)
        links = ((extra.role_down, device.down), (extra.role_up, device.up))
        on_the_way = [transfer_seconds(x, rate, device.latency, device.loss, self.slow_start) for x, rate in links]
        return np.asarray(sum(on_the_way) + extra.role_seconds * device.slowness)

    def _lost(self, number: int, ids: Ints, start: float, times: tuple[Floats, Floats, Floats]) -> _Lost:
        until = self._reached_until(number, ids, start)
        phase = sum((until >= t).astype(np.int64) for t in times)
        begins = np.stack([np.full(len(ids), start), *times[:2]])
        ends = np.stack([begins[0], *times[1:]])  # who is lost before the download is lost when it begins
        moment = self._moment(number, ids)[None]
        begin, end = (np.take_along_axis(t, moment, 0)[0] for t in (begins, ends))
        at = begin + self._draw(number, ids, _SHARE) * (end - begin)
        drops = self._drops(number, ids)
        first = np.where(drops, np.minimum(until, at), until)
        phase = np.where(drops, np.minimum(phase, moment[0]), phase)
        return _Lost(np.maximum(first, start), phase, until <= start)

    def _drops(self, number: int, ids: Ints) -> NDArray[np.bool_]:
        more = np.ones(len(ids)) if self.propensity is None else self.propensity[ids]
        probability = np.minimum(1.0, self.dropout * more)
        common = uniform_at((self.seed, "clock", number, "common"), np.zeros(1, np.int64), _DROPS)
        return lost_clients(probability, self._draw(number, ids, _DROPS), float(common[0]), self.dropout_correlation)

    def _reached_until(self, number: int, ids: Ints, start: float) -> Floats:
        if isinstance(self.availability, Intervals):
            return self.availability.until(ids, start)
        return np.where(self._draw(number, ids, _REACHED) < self.availability, np.inf, -np.inf)

    def _moment(self, number: int, ids: Ints) -> Ints:
        if self.dropout_moment == "any":
            return (self._draw(number, ids, _MOMENT) * len(_MOMENTS)).astype(np.int64)
        return np.full(len(ids), _MOMENTS.index(self.dropout_moment))

    def _draw(self, number: int, ids: Ints, place: int) -> Floats:
        return uniform_at((self.seed, "clock", number), ids, place)
