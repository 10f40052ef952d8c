"""Do workers that exchange messages keep to their contract: pure, sendable, silent after their end, sure of repeats?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from atoll import tree
from atoll.clock import ClockTable, Devices
from atoll.errors import AtollError, ConformanceError, ProtocolError
from atoll.messages import (
    Actor,
    ClosedPostError,
    Deed,
    Ended,
    Faults,
    Handler,
    Mail,
    Post,
    VirtualNetwork,
    Worker,
    WorkerTopology,
    run,
)
from atoll.testing.assertions import need, need_same
from atoll.tree import Tree

Make: TypeAlias = Callable[[str], Worker]
_Event: TypeAlias = tuple[str, Any]  # a method of Actor, and its arguments
_REPEATS = 8  # messages that are handed over twice, one in each run
_MOST_EVENTS = 100_000


def check_worker(make: Make, topology: WorkerTopology, *, repeats: bool = True) -> list[str]:
    """The names of the checks that `make(name)` of every worker passes, or a ConformanceError that says which not.

    `make` gives a new worker at every call. `repeats`: a peer may say a thing twice, and the results stay the same;
    False for workers that rely on hearing everything once, which a link promises and a peer that asks again does not.
    """
    done, heard = _ends(make, topology)
    names = ["sends what can travel, is understood, and ends without acting after it"]
    names.append(_is_pure(make, topology, heard))
    if repeats:
        names.append(_bears_repeats(make, topology, done))
    return [*names, _bears_deaths(make, topology, done)]


@dataclass
class _Watched(Worker):
    """A worker around a worker: writes down what it hears, and hands the message `twice` of the run over again."""

    inner: Worker
    heard: list[_Event]
    count: list[int]  # of all messages of the run
    twice: int = -1

    def begin(self, post: Post) -> None:
        self.heard.append(("begin", ()))
        self.inner.begin(post)

    def handlers(self) -> Mapping[str, Handler]:
        return {kind: partial(self._on, handler) for kind, handler in self.inner.handlers().items()}

    def bodies(self) -> Mapping[str, Tree]:
        return self.inner.bodies()

    def timers(self) -> Mapping[str, Callable[[Post], None]]:
        return {name: partial(self._alarm, name, alarm) for name, alarm in self.inner.timers().items()}

    def gone(self, post: Post, name: str, why: str) -> None:
        self.heard.append(("lose", (name, why)))
        self.inner.gone(post, name, why)

    def _on(self, handler: Handler, post: Post, mail: Mail) -> None:
        self.heard.append(("deliver", (mail,)))
        self.count[0] += 1
        handler(post, mail)
        if self.count[0] == self.twice and not post.ended:
            handler(post, mail)

    def _alarm(self, name: str, alarm: Callable[[Post], None], post: Post) -> None:
        self.heard.append(("alarm", (name,)))
        alarm(post)


@dataclass
class _Play:
    """One run of watched workers."""

    make: Make
    topology: WorkerTopology
    twice: int = -1
    count: list[int] = field(default_factory=lambda: [0])
    heard: dict[str, list[_Event]] = field(default_factory=dict)

    def run(self, faults: Faults | None = None) -> Ended:
        self.heard = {name: [] for name in self.topology.names}
        workers = {n: _Watched(self.make(n), self.heard[n], self.count, self.twice) for n in self.topology.names}
        devices = Devices.of(ClockTable(latency_ms=10.0, seconds_per_step=0.0), 0, len(workers))
        network = VirtualNetwork(devices, {name: i for i, name in enumerate(workers)})
        return run(workers, self.topology, network=network, faults=faults or Faults(), most_events=_MOST_EVENTS)


def _ends(make: Make, topology: WorkerTopology) -> tuple[Ended, dict[str, list[_Event]]]:
    play = _Play(make, topology)
    try:
        done = play.run()
    except ClosedPostError as e:
        raise ConformanceError(f"silent after its end: {e} Usual cause: a `return` is missing after `post.end`.") from e
    except ProtocolError as e:
        raise ConformanceError(f"comes to its end: {e} Usual cause: a message that nobody answers.") from e
    except AtollError as e:
        raise ConformanceError(f"messages can travel: {e}") from e
    need(not done.refused, "is understood", "; ".join(map(str, done.refused)), "no message refused", "a misspelt name")
    return done, play.heard


def _is_pure(make: Make, topology: WorkerTopology, heard: Mapping[str, list[_Event]]) -> str:
    """The same events twice: the same messages, timers and results; what arrived is left as it was."""
    for name, events in heard.items():
        before = [_digest(event) for event in events]
        first = _deeds(Actor(name, make(name), topology), events)
        touched = [event[1][0].kind for event, digest in zip(events, before, strict=True) if _digest(event) != digest]
        need(not touched, f"{name} leaves its mail alone", touched[:1], "no change", "an operation in place")
        second = _deeds(Actor(name, make(name), topology), events)
        for a, b in zip(first, second, strict=True):
            same = (a.parcels, a.timers, a.seconds) == (b.parcels, b.timers, b.seconds)
            cause = "a draw, a clock, or what workers share"
            need(same, f"{name} does the same twice", _said(b), _said(a), cause)
            need_same(a.result or {}, b.result or {}, f"{name} ends with the same twice", "a draw without a key")
    return "pure given its messages"


def _bears_repeats(make: Make, topology: WorkerTopology, done: Ended) -> str:
    """One message of the run comes again, at several places in turn: the results stay the same."""
    messages = sum(line.fate == "delivered" for line in done.log)
    for twice in sorted({1 + i * messages // _REPEATS for i in range(_REPEATS)} & set(range(1, messages + 1))):
        try:
            again = _Play(make, topology, twice).run()
        except Exception as e:  # a stranger's worker may raise anything
            raise ConformanceError(
                f"bears a repeated message: message {twice} of the run, handed over twice, ends in "
                f"{type(e).__name__}: {e} Usual cause: a handler that counts messages, and not whose they are."
            ) from e
        for name, result in done.results.items():
            cause = "a handler that adds up what comes, and does not look whether it has it already"
            need_same(result, again.results[name], f"{name} bears a repeated message ({twice} of the run)", cause)
    return "bears a repeated message"


def _bears_deaths(make: Make, topology: WorkerTopology, done: Ended) -> str:
    """Each worker dies halfway in turn: the others end, or a ProtocolError says why they cannot."""
    for name in topology.names:
        try:
            _Play(make, topology).run(Faults(deaths={name: done.seconds / 2}))
        except ProtocolError as e:
            need("." in str(e), "a ProtocolError says what and why", str(e), "a sentence", "a bare refusal")
        except Exception as e:
            raise ConformanceError(
                f"bears the death of {name}: ends in {type(e).__name__}: {e}; expected an end or a ProtocolError. "
                "Usual cause: results that are taken to hold everybody."
            ) from e
    return "goes on when a neighbour dies, or says why not"


def _deeds(actor: Actor, events: list[_Event]) -> list[Deed]:
    return [deed for method, given in events if (deed := getattr(actor, method)(*given)) is not None]


def _digest(event: _Event) -> str:
    return tree.digest(event[1][0].body) if event[0] == "deliver" else ""


def _said(deed: Deed) -> str:
    sent = ", ".join(f"{parcel.kind} to {parcel.receiver}" for parcel in deed.parcels)
    return f"{sent or 'no message'}; timers {deed.timers}"
