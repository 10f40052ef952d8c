"""Drivers answer what rounds ask for.

A run is a generator: it yields a request and is sent a `Pending` answer. `drive` answers one run with one engine;
`lockstep.py` answers several runs with one stack.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from atoll.core import Engine, Outcome, Pending, Play, Request
from atoll.tree import Tree

T = TypeVar("T")
Asking: TypeAlias = Generator[Request, Pending[Any], T]  # yields requests, is sent pending answers, returns T


def drive(run: Asking[T], engine: Engine) -> T:
    """Answer one run until it ends; what cannot be answered is raised where the run waits."""
    try:
        request = next(run)
        while True:
            try:
                answer = engine.submit(request)
            except BaseException as e:  # a run puts its folder in order whatever it was
                request = run.throw(e)
            else:
                request = run.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


@dataclass
class Stopwatch:
    """Seconds that passed between a question and its answer."""

    seconds: float = 0.0

    def ask(self, request: Request) -> Asking[Pending[Any]]:
        """Pass the request on, and time the answer."""
        before = time.perf_counter()
        answer = yield request
        self.seconds += time.perf_counter() - before
        return answer

    def wait(self, pending: Pending[T]) -> T:
        """What it came to."""
        before = time.perf_counter()
        result = pending.result()
        self.seconds += time.perf_counter() - before
        return result


def on_promises(
    play: Callable[[], Play], watch: Stopwatch | None = None, meanwhile: Callable[[], None] | None = None
) -> Asking[tuple[Tree, Outcome]]:
    """One round, played on what engines promise, so that the host runs ahead of a device.

    A round is pure: where a promise was not kept (a client had to be left out), it is played again with what really
    came. `meanwhile` is what the host may do while the device is at work on the last request.
    """
    settled: list[Any] = []
    watch = watch or Stopwatch()
    while True:
        game, promise = play(), None
        try:
            request = next(game)
            for answer in settled:
                request = game.send(answer)
            while True:
                if promise is not None and watch.wait(promise) is not promise.promised:
                    break
                if promise is not None:
                    settled.append(promise.promised)
                promise = yield from watch.ask(request)
                request = game.send(promise.promised)
        except StopIteration as end:
            if promise is None:
                return end.value  # type: ignore[no-any-return]
            if meanwhile is not None:
                meanwhile()
            if watch.wait(promise) is promise.promised:
                return end.value  # type: ignore[no-any-return]
        assert promise is not None
        settled.append(promise.result())
