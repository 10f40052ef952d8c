"""The best model of a run so far: which round, chosen on what."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from atoll.experiment import Watched
from atoll.tree import Tree


class Best:
    """Follows the record. The model stays where it is, unread, until a checkpoint is written: then best.pt is, too."""

    def __init__(self, watched: Watched | None) -> None:
        self.watched = watched
        self.round, self.value = 0, math.nan
        self.unwritten: Callable[[], Tree] | None = None  # gives what is learned, if best.pt is of an earlier round

    def hear(self, line: Mapping[str, Any], model: Callable[[], Tree] | None) -> None:
        """One more line of the record, and what reads the model that it is about."""
        if self.watched is None or not self.watched.improves(value := self.watched.value(line), on=self.value):
            return
        self.round, self.value, self.unwritten = int(line["round"]), value, model

    def replay(self, history: Iterable[Mapping[str, Any]]) -> None:
        """A resumed run had made these rounds, and kept the best of them."""
        for line in history:
            self.hear(line, None)

    def summary(self) -> dict[str, Any]:
        """What run.json says."""
        if self.watched is None or not self.round:
            return {}
        return {"best": {"round": self.round, "on": self.watched.metric, "value": self.value}}
