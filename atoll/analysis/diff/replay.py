"""Both runs again, side by side, up to the round where they part; with the engines and threads that they had."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from atoll import tree
from atoll.analysis.diff.first_difference import First, first
from atoll.analysis.diff.gaps import COARSE, EPSILON
from atoll.analysis.diff.recording_engine import Recording
from atoll.data import Dataset
from atoll.engines import cpu_threads
from atoll.errors import RecordError
from atoll.experiment import Device, Experiment, Setup, set_up
from atoll.records import RunFolder, find
from atoll.runs import RunLoop, drive, read_checkpoint, resumed_choice


@dataclass(frozen=True)
class Replay:
    """What came of running both again, round by round, until they parted or the round was reached."""

    round: int  # the last that was run
    began: tuple[int, int]  # the round of the checkpoint that each went on from; 0: from the beginning
    parted: bool  # do the models differ after it?
    agrees: tuple[int | None, int | None]  # the first round where each is not what its own record says
    first: First | None  # where that round parts, if it does
    lines: tuple[dict[str, Any], dict[str, Any]]  # the record of that round, of both
    notes: tuple[str, ...] = ()


class Rerun:
    """One run, set up a second time as it was."""

    def __init__(self, folder: Path, dataset: Dataset | None = None) -> None:
        self.folder, self.info = RunFolder(folder), RunFolder(folder).info
        self.record = self.folder.record()
        self.experiment = Experiment.parse(self.info["experiment"])
        was = self.info["hardware"].get("device", "cpu")
        self.device: Device = "cuda" if was == "cuda" and torch.cuda.is_available() else "cpu"
        self.threads = int(self.info["hardware"].get("threads") or torch.get_num_threads())
        with self._alone():
            self.setup: Setup = set_up(self.experiment, self.device, dataset)
        self.notes = tuple(self._differently(was))

    def _differently(self, was: str) -> Iterator[str]:
        name, ranks = self.folder.path.name, self.info.get("ranks", {}).get("count", 1)
        if was != self.device:
            yield f"{name} was run on {was!r}, which is not here: it was run again on {self.device!r}"
        if (was_data := find(self.info, "data", "digest")) not in (None, self.setup.dataset.digest()):
            yield f"the data of {name} have changed since (digest {was_data[:8]}...): it was run again on today's"
        if ranks > 1:
            yield f"{name} was run by {ranks} processes: it was run again by one, which adds up in another order"
        if self.info["engine"].get("together", 1) > 1 or "in a stack" in str(self.info["engine"].get("reason")):
            yield f"{name} was run in a stack of several: it was run again alone, which may round otherwise"

    @property
    def epsilon(self) -> float:
        """Of the arithmetic: on a GPU it may have fewer digits."""
        return COARSE.get(self.setup.choice.precision, EPSILON) if self.device == "cuda" else EPSILON

    def drive(self, place: Path, until: int) -> None:
        """Get ready: from the checkpoint, if it is from before the round that is wanted."""
        place.mkdir()
        choice = resumed_choice(self.info, self.folder)
        with self._alone():
            self.loop = RunLoop(self.setup, RunFolder(place), choice)
        self.recording = Recording(self.loop.own, self.loop.plan.program)
        self.began = self._resumed(place, until)
        self.astray: int | None = None

    def _resumed(self, place: Path, until: int) -> int:
        try:
            saved = read_checkpoint(self.folder)
        except RecordError:  # none, or a damaged one: from the beginning, then
            return 0
        if not 0 < saved.rounds < until:
            return 0
        self.folder.copy_checkpoint(RunFolder(place), saved.memory.get("file"))
        self.loop.resume()
        return saved.rounds

    @property
    def done(self) -> int:
        """Rounds so far."""
        return len(self.loop.plan.history)

    def next_round(self, watch: bool) -> None:
        """One more; its model is held against the record."""
        self.recording.on, self.recording.seen = watch, None
        with self._alone():
            drive(self.loop.play_round(), self.recording)
        recorded = self.record[self.done - 1].get("model") if self.done <= len(self.record) else None
        if self.astray is None and recorded != self.loop.plan.history[-1]["model"]:
            self.astray = self.done

    def model(self) -> tree.Tree:
        """The model now, on the host."""
        return tree.to(self.setup.round.model(self.loop.state.round), "cpu")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """With the threads that the run had, since sums follow them; nothing is left changed."""
        cuda = [torch.device(self.device)] if self.device == "cuda" else []
        with torch.random.fork_rng(devices=cuda), cpu_threads(self.threads):
            yield


def set_up_again(a: Path, b: Path) -> tuple[Rerun, Rerun]:
    """Both runs, set up; the data is read once if both name the same."""
    one = Rerun(a)
    other = RunFolder(b).info["experiment"].get("data")
    plain = one.setup.partition.noise is None  # noise is put into the data that the clients see
    return one, Rerun(b, one.setup.dataset if plain and other == one.info["experiment"].get("data") else None)


def initial(runs: tuple[Rerun, Rerun]) -> bool:
    """Do both begin with the same model?"""
    return tree.digest(runs[0].setup.model) == tree.digest(runs[1].setup.model)


def replay(runs: tuple[Rerun, Rerun], until: int) -> Replay:
    """Run both again until their models differ, and at most this many rounds."""
    outcome = _replay(runs, until)
    if outcome.parted and outcome.first is None:  # earlier than the records say: once more, with open eyes
        outcome = _replay(runs, outcome.round)
    return outcome


def _replay(runs: tuple[Rerun, Rerun], until: int) -> Replay:
    a, b = runs
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="atoll-again-")))
        for name, run in zip("ab", runs, strict=True):
            run.drive(place / name, until)
        for run in runs:  # to where the other one begins
            while run.done < max(a.began, b.began):
                run.next_round(watch=False)
        while a.done < until and not (a.done and _parted(runs)):
            last = a.done == until - 1
            for run in runs:
                run.next_round(watch=last)
        return _found(runs)


def _found(runs: tuple[Rerun, Rerun]) -> Replay:
    a, b = runs
    parted, where = _parted(runs), None
    if parted and a.recording.on:
        columns = a.loop.columns, b.loop.columns
        where = first(a.recording.seen, b.recording.seen, columns, (a.model(), b.model()), max(a.epsilon, b.epsilon))
    lines = tuple(run.loop.folder.record()[-1] for run in runs)
    notes = (*a.notes, *b.notes)
    return Replay(a.done, (a.began, b.began), parted, (a.astray, b.astray), where, cast(Any, lines), notes)


def _parted(runs: Sequence[Rerun]) -> bool:
    one, other = (run.loop.plan.history[-1].get("model") if run.loop.plan.history else None for run in runs)
    return one != other
