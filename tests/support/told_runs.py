"""A callback that leaves a mark in the folder of its run, and ends the run of one learning rate: for sweeps."""

from collections.abc import Mapping
from typing import Any

import atoll
from atoll.runs import LiveRun


class Told(atoll.Callback):
    """Counts on itself, so that runs which shared it would count together."""

    def __init__(self, stop: float | None = None) -> None:
        self.stop, self.rounds = stop, 0

    def on_round(self, run: LiveRun, entry: Mapping[str, Any]) -> str | None:
        self.rounds += 1
        return "told to" if run.experiment.algorithm["lr"] == self.stop and self.rounds == 2 else None

    def on_end(self, run: LiveRun, status: str) -> None:
        (run.folder / "told").write_text(f"{self.rounds} {status}")
