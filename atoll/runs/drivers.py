"""Drivers answer what rounds ask for.

A run is a generator: it yields a request and is sent a `Pending` answer. `drive` answers one run with one engine;
`lockstep.py` answers several runs with one stack.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

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

    def during(self, work: Callable[[], None]) -> None:
        """What the host does while a device is at work on the answer."""
        before = time.perf_counter()
        work()
        self.seconds += time.perf_counter() - before

    def wait(self, pending: Pending[T]) -> T:
        """What it came to."""
        before = time.perf_counter()
        result = pending.result()
        self.seconds += time.perf_counter() - before
        return result


def on_promises(
    play: Callable[[], Play], watch: Stopwatch | None = None, meanwhile: Callable[[Tree], None] | None = None
) -> Asking[tuple[Tree, Outcome]]:
    """One round, played on what engines promise, so that the host runs ahead of a device.

    A round is pure: where a promise was not kept (a client had to be left out), it is played again with what really
    came, whatever it made of the promise. `meanwhile` is what the host may do while the device is at work on the last
    request; it is given the state that will be, if that promise is kept.
    """
    known: list[Any] = [None]  # what the round is sent: nothing at first, then answers that are certain
    watch = watch or Stopwatch()
    while True:
        game = play()
        step = [_sent(game, answer) for answer in known][-1]
        while step.request is not None:
            promise = yield from watch.ask(step.request)
            ahead = _sent(game, promise.promised)
            if meanwhile is not None and ahead.returned is not None:
                watch.during(partial(meanwhile, ahead.returned[0]))
            known.append(watch.wait(promise))
            if known[-1] is not promise.promised:
                break
            step = ahead
        else:
            if step.error is not None:
                raise step.error
            return step.returned  # type: ignore[no-any-return]


class _Step(NamedTuple):
    """Where a round is: at its next request, or at its end."""

    request: Request | None
    returned: Any = None
    error: Exception | None = None


def _sent(game: Play, answer: Any) -> _Step:
    try:
        return _Step(game.send(answer))
    except StopIteration as end:
        return _Step(None, end.value)
    except Exception as e:  # raised once it is certain that the round is to blame, and not a promise
        return _Step(None, error=e)
