"""A slow oracle: an asynchronous server as a heap of events, which trains clients one by one, in NumPy."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from atoll.clock import Clock
from atoll.threefry import uniform_at

Vector = NDArray[np.float64]


@dataclass
class EventHeap:
    """Every client is an event at the moment at which the server hears of it."""

    clock: Clock
    population: int
    concurrency: int
    buffer: float
    steps: Vector
    train: Callable[[int, Vector], Vector]  # of a client and the model that it was sent: its change
    server: Callable[[Vector, list[tuple[int, int, Vector, Vector]]], Vector]  # (client, staleness, sent, change) each
    model: Vector
    window: float = np.inf
    max_staleness: float = np.inf
    bytes: tuple[float, float] = (0.0, 0.0)
    now: float = 0.0
    version: int = 0
    heap: list[tuple[float, float, int, int, bool, Vector]] = field(default_factory=list)

    def ask(self, idle: list[int]) -> None:
        while idle and len(self.heap) < self.concurrency:
            reached = [c for c in idle if self.clock.reaches(self.version, np.array([c]), self.now)[0]]
            if not reached:
                return
            client = np.array([reached[0]])
            idle.remove(reached[0])
            work = (client, self.steps[client], *self.bytes, self.now, self.clock.seconds_per_step)
            trips = self.clock.trips(self.version, *work)
            lost, due = bool(trips.lost[0]), float(trips.heard[0])
            if due > self.now + self.clock.patience.deadline:
                lost, due = True, self.now + self.clock.patience.deadline
            rank = float(self.clock.rank(self.version, client)[0])
            heapq.heappush(self.heap, (due, rank, int(client[0]), self.version, lost, self.model.copy()))

    def step(self) -> list[tuple[int, int]]:
        """One step; who was in it, and how stale."""
        self.heap = [e for e in self.heap if self.version - e[3] <= self.max_staleness]
        heapq.heapify(self.heap)
        at_work = {e[2] for e in self.heap}
        everybody = np.array([c for c in range(self.population) if c not in at_work], np.int64)
        draws = uniform_at((self.clock.seed, "idle", self.version), everybody, 0)
        idle = everybody[np.argsort(draws, kind="stable")].tolist()
        limit, came = self.now + self.window, list[tuple[int, int, Vector, Vector]]()
        self.ask(idle)
        while len(came) < self.buffer:
            if not self.heap or self.heap[0][0] > limit:
                self.now = limit if np.isfinite(limit) else self.now
                break
            self.now = self.heap[0][0]
            while self.heap and self.heap[0][0] == self.now and len(came) < self.buffer:
                _, _, client, version, lost, sent = heapq.heappop(self.heap)
                if not lost:
                    came.append((client, self.version - version, sent, self.train(client, sent)))
            self.heap = [e for e in self.heap if not (e[0] == self.now and e[4])]  # lost at this very moment
            heapq.heapify(self.heap)
            if len(came) < self.buffer and self.now < limit:
                self.ask(idle)
            elif self.now >= limit:
                break
        came.sort(key=lambda x: x[0])
        self.model = self.server(self.model, came) if came else self.model
        self.version += 1
        return [(client, staleness) for client, staleness, _, _ in came]
