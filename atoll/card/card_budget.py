"""How many seeds and rounds fit into a time: measured on a few rounds, and remembered for when a card goes on."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from atoll.card.card_plan import CardPlan, Method
from atoll.experiment import Device, Experiment
from atoll.records import replace_text
from atoll.runs import run

PILOT = 3  # rounds
SPARE = 0.8  # of the budget is planned with: the rest is for the page, and for what takes longer than thought
FEWEST = 2  # rounds
_PLAN = ".card-plan.json"  # hidden: a sweep takes a folder that holds nothing else


@dataclass(frozen=True)
class Pace:
    """Seconds of one round of one run, and of everything else about a run."""

    round: float
    start: float

    def seconds(self, runs: int, rounds: int, jobs: int) -> float:
        """Of so many runs with so many rounds in all.

        >>> Pace(0.5, 2.0).seconds(10, 100, 2)
        35.0
        """
        return (runs * self.start + rounds * self.round) / max(1, jobs)


@dataclass(frozen=True)
class CardSize:
    """Seeds, and a share of every method's rounds."""

    seeds: int
    share: float


LADDER = (  # the first that fits is taken
    CardSize(5, 1.0),
    CardSize(3, 1.0),
    CardSize(2, 1.0),
    CardSize(2, 0.5),
    CardSize(2, 0.25),
    CardSize(1, 0.25),
    CardSize(1, 0.1),
    CardSize(1, 0.05),
)


def chosen_size(plan_of: Callable[[CardSize], CardPlan], pace: Pace, budget: float, jobs: int) -> CardSize:
    """The largest card whose runs take at most SPARE of the budget; the smallest if none does."""
    for size in LADDER:
        plan = plan_of(size)
        if pace.seconds(len(plan.cells), plan.rounds, jobs) <= SPARE * budget:
            return size
    return LADDER[-1]


def measured_pace(methods: Sequence[Method], device: Device) -> Pace:
    """The slowest of the methods, in a few rounds that are thrown away."""
    paces = [_pace(method.raw, device) for method in methods]
    return Pace(max(p.round for p in paces), max(p.start for p in paces))


def _pace(raw: Mapping[str, Any], device: Device) -> Pace:
    rounds = min(PILOT, int(raw["rounds"]))
    with tempfile.TemporaryDirectory(prefix="atoll-pilot-") as folder:
        began = time.monotonic()
        done = run(Experiment.parse({**raw, "rounds": rounds}), Path(folder) / "run", device=device, progress=False)
        whole = time.monotonic() - began
        seconds = [sum(v for v in line["seconds"].values() if isinstance(v, float)) for line in done.history]
    each = min(seconds)  # the first one compiles and warms up
    return Pace(each, max(0.0, whole - rounds * each))


def remembered(folder: Path, asked: str) -> CardSize | None:
    """What was chosen for the same card before."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        table = json.loads((folder / _PLAN).read_text())
        return CardSize(**table["size"]) if table["asked"] == asked else None
    return None


def remember(folder: Path, asked: str, size: CardSize) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / _PLAN, json.dumps({"asked": asked, "size": asdict(size)}, indent=1))


def said(size: CardSize, methods: Sequence[Method], asked_rounds: Mapping[str, int]) -> list[str]:
    """What was left out to fit, in words."""
    words = []
    if size.seeds < 3:
        lacking = "no interval can be given" if size.seeds == 1 else "intervals are wide"
        words.append(f"{size.seeds} seed{'' if size.seeds == 1 else 's'} instead of 3, to fit the budget: {lacking}.")
    cut = [m.name for m in methods if int(m.raw["rounds"]) < asked_rounds[m.name]]
    if cut:
        rounds = ", ".join(f"{m.name} {m.raw['rounds']} of {asked_rounds[m.name]}" for m in methods if m.name in cut)
        words.append(f"Fewer rounds than the files ask for, to fit the budget: {rounds}.")
    return words
