"""Which of several engines is the fastest: measured in turns on a piece of the first round, and remembered.

A machine that was busy for a moment must not decide for good. So engines are timed in turns, the best of several turns
counts, and what was found is measured again while it was close, or taken under load, or contradicted by real rounds.
Measurements of one thing are joined by their minimum: other work only ever adds to a time.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Engine, Job
from atoll.tree import Tree

Clock = Callable[[], float]
_TURNS = 40  # at most; enough for a step to be captured
_CLIENTS, _FEW, _STEPS = 512, 16, 4  # of the first round, at most: in a stack, one by one
_SHORT, _LONG = 1.5, 4.5  # seconds for small jobs and for big ones, in all
_PIECE = 0.25  # seconds of work, one client after the other
_FAIR = 3  # turns that everybody gets
_HOPELESS = 4.0  # times the best: not timed again
_TIE = 1.05  # a smaller gain is none: the engine that was taken before, or else the one named first, stays
_CLEAR = 1.5  # times the next best: nothing to measure again
_TRIES = 3  # measurements after which a close answer stands
_BUSY = 0.75  # processes at work for each core
_DAYS = 30  # that an answer is kept
_OFF = 3.0  # times what was measured: real rounds contradict it
_DOUBTS = 3  # after so many the difference is in the nature of the job


@dataclass(frozen=True)
class Answer:
    """What was found: seconds of a client's step on each engine, the one to take, when, and how sure that is.

    Measured on a busy machine, they are seconds of processor time.
    """

    best: str
    seconds: dict[str, float]
    at: float  # seconds since 1970
    busy: bool = False  # was the machine at other work?
    tries: int = 1
    doubts: int = 0
    doubted: bool = False

    @property
    def margin(self) -> float:
        """How many times as long the next best takes."""
        others = [s for name, s in self.seconds.items() if name != self.best]
        return min(others, default=math.inf) / self.seconds[self.best]

    def stands(self, now: float, busy: bool) -> bool:
        """Is there nothing to measure again? What was found under load stands only as long as there is load."""
        if self.doubted or not 0 <= now - self.at < _DAYS * 86_400 or (self.busy and not busy):
            return False
        return self.tries >= _TRIES or (self.margin >= _CLEAR and not self.busy)

    def words(self) -> str:
        """For people: the engines and what they take."""
        return "measured: " + ", ".join(f"{k} {v * 1e3:.3g} ms" for k, v in self.seconds.items()) + " (a client's step)"


@dataclass(frozen=True)
class Probe:
    """Measures and remembers. The clocks can be exchanged."""

    path: Path
    clock: Clock = time.perf_counter
    work: Clock = time.process_time
    now: Clock = time.time
    load: Clock = field(default=lambda: os.getloadavg()[0] / (os.cpu_count() or 1))

    def fastest(self, engines: Mapping[str, Engine], job: Job, mark: str) -> Answer:
        """The answer for this mark: the remembered one if it stands, else a new measurement joined to it."""
        known, busy = _read(self.path, mark), self.load() > _BUSY  # asked before we are the load ourselves
        if known is not None and known.best in engines and known.stands(self.now(), busy):
            return known
        found = self._under_load(engines, job) if busy else measure(engines, job, self.clock, self.clock)
        answer = _joined(known, found, busy, self.now())
        _write(self.path, mark, answer)
        return answer

    def _under_load(self, engines: Mapping[str, Engine], job: Job) -> dict[str, float]:
        """Seconds of processor time on one core, which other work does not add to; shared by those that share cores."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            found = measure(engines, job, self.work, self.clock)
        finally:
            torch.set_num_threads(threads)
        return {name: s / getattr(engines[name], "count", lambda: 1)() for name, s in found.items()}

    def confirm(self, mark: str, best: str, seconds: float) -> None:
        """Tell how long a client's step really took: an answer that is far off is measured anew the next time."""
        known = _read(self.path, mark)
        if known is None or known.best != best or known.busy or known.doubted or known.doubts >= _DOUBTS:
            return  # nothing that rounds could contradict
        if not 1 / _OFF <= seconds / known.seconds[best] <= _OFF:
            _write(self.path, mark, replace(known, doubted=True, doubts=known.doubts + 1))


def measure(engines: Mapping[str, Engine], job: Job, clock: Clock, patience: Clock) -> dict[str, float]:
    """Seconds of a client's step on each engine, in turns, the best of them; who is hopeless is left out early.

    Engines that take clients one by one are timed on a few; stacks on as many of the cohort as the others would do in
    a fraction of a second, since many cost a stack little more than few.
    """
    started = patience()
    few, many = _pieces(engines, job, clock)
    trials = {name: many if name.startswith("vector") else few for name in engines}
    limit = _SHORT if patience() - started < _SHORT / 2 else _LONG
    best: dict[str, float] = {}
    alive = [name for name in engines if _chunk(name) < len(many.cohort)]
    for turn in range(_TURNS):
        for name in alive:
            best[name] = min(best.get(name, math.inf), _timed(engines[name], trials[name], clock))
        alive = [n for n in _near(best) if n in alive] if turn >= _FAIR else alive
        if patience() - started > limit or (turn >= _FAIR and len(alive) == 1):
            break
    return {name: best[name] for name in engines if name in best}


def mark(job: Job, columns: Tree, *more: Any) -> str:
    """What the answer may depend on: shapes, the algorithm, and the machine."""
    shapes = [(p, tuple(x.shape), str(x.dtype)) for p, x in tree.paths(job.sent)]
    data = [(p, tuple(x.shape[1:])) for p, x in tree.paths(columns)]
    size = 1 << max(0, len(job.cohort) - 1).bit_length()
    machine = (platform.processor(), platform.node(), os.cpu_count(), torch.__version__, torch.get_num_threads())
    parts = (type(job.algorithm).__name__, shapes, data, tuple(job.cohort.plan.shape[2:]), size, machine, more)
    return hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()


def default_path() -> Path:
    """Where answers are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "atoll" / "engines.json"


@dataclass(frozen=True)
class Scratch:
    """A memory that can be read and forgets what is written."""

    inner: Any

    def read(self, ids: Tensor) -> Tree:
        """The real rows."""
        return self.inner.read(ids)  # type: ignore[no-any-return]

    def write(self, ids: Tensor, rows: Tree) -> None:
        """Nothing."""


def small(job: Job, clients: int, steps: int) -> Job:
    """The first few clients and steps of a job, with no effect on memory."""
    few = job.cohort.rows(slice(0, clients))
    cut = replace(few, steps=few.steps.clamp(max=steps), plan=few.plan[:, :steps], count=few.count[:, :steps])
    sent = tree.rows(job.sent, slice(0, clients)) if job.each else job.sent
    return replace(job, cohort=cut, memory=Scratch(job.memory), sent=sent)


def _pieces(engines: Mapping[str, Engine], job: Job, clock: Clock) -> tuple[Job, Job]:
    """A few clients, and as many as one by one take `_PIECE` seconds; what engines make on first use is made.

    Their number follows from the engines that compute on single cores: other work disturbs those least.
    """
    one = small(job, 1, 1)
    for name, engine in engines.items():
        if not _chunk(name):
            engine.run(one)
    single = [e for name, e in engines.items() if not name.startswith("vector")]
    step = min(_timed(e, one, clock) for e in single for _ in range(3))
    steps = 1 if step > _PIECE / 4 else _STEPS
    clients = int(_PIECE / (steps * max(1e-9, step)))
    return small(job, max(2, min(_FEW, clients)), steps), small(job, max(2, min(_CLIENTS, clients)), steps)


def _chunk(name: str) -> int:
    """The clients at a time, of "vector by 16"; 0 for all."""
    return int(name.partition(" by ")[2] or 0)


def _timed(engine: Engine, job: Job, clock: Clock) -> float:
    """Seconds of a client's step."""
    before = clock()
    engine.run(job)
    return (clock() - before) / _steps(job)


def _steps(job: Job) -> int:
    return max(1, int(job.cohort.steps.sum()))


def _near(seconds: Mapping[str, float]) -> list[str]:
    least = min(seconds.values())
    return [n for n, s in seconds.items() if s <= _HOPELESS * least]


def _joined(known: Answer | None, found: dict[str, float], busy: bool, now: float) -> Answer:
    """Both measurements as one. What was doubted, is old, or was found under load that has gone, does not count."""
    doubts, taken = (known.doubts, known.best) if known else (0, "")
    if known is None or known.doubted or not 0 <= now - known.at < _DAYS * 86_400 or (known.busy and not busy):
        return Answer(_best(found, taken), found, now, busy, 1, doubts)
    seconds = {n: min(s, known.seconds.get(n, math.inf)) for n, s in found.items()}
    return Answer(_best(seconds, taken), seconds, now, known.busy and busy, known.tries + 1, doubts)


def _best(seconds: Mapping[str, float], taken: str) -> str:
    """The fastest; of those that are as good as that, the one taken before, or else the first."""
    good = [n for n, s in seconds.items() if s <= _TIE * min(seconds.values())]
    return taken if taken in good else good[0]


def _read(path: Path, mark: str) -> Answer | None:
    try:
        kept = json.loads(path.read_text())[mark]
        answer = Answer(**{k: v for k, v in kept.items() if k != "margin"})
        return answer if all(s > 0 for s in answer.seconds.values()) and answer.best in answer.seconds else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(path: Path, mark: str, answer: Answer) -> None:
    """Kept if it can be; a home that cannot be written costs a new measurement next time, nothing else."""
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError):
        known = {}
    known = known if isinstance(known, dict) else {}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps({**known, mark: {**asdict(answer), "margin": min(answer.margin, 1e9)}}))
        draft.replace(path)
    except OSError:
        return
