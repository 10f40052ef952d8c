"""What a run holds between rounds; how it is written, read again, and kept the same on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from atoll import tree
from atoll.core import ClientStates, Engine
from atoll.engines import RowLayout
from atoll.engines.ranks import World
from atoll.experiment import Setup
from atoll.records import RunFolder
from atoll.runs import checkpoint
from atoll.runs.best import Best
from atoll.runs.checkpoint import Saved
from atoll.runs.record_line import as_read
from atoll.runs.round_plan import RoundPlan
from atoll.tree import Tree


@dataclass(eq=False)
class State:
    """On many ranks each holds the same, but for what clients keep; only rank 0 writes."""

    setup: Setup
    folder: RunFolder
    world: World
    plan: RoundPlan
    engine: Engine
    round: Tree  # all that the round keeps
    best: Best
    _digesting: tuple[Tree, Callable[[], str]] | None = field(default=None, init=False)

    @property
    def layout(self) -> RowLayout:
        """How what a client keeps lies in a checkpoint."""
        return RowLayout(self.plan.client_rows)

    def model(self) -> Tree:
        """The learned model, keyed like the module's state."""
        return _on_host(self.setup.task.state(self.setup.round.model(self.round)))

    def beside(self) -> dict[str, Tree]:
        """The round's other models, likewise."""
        return {k: _on_host(self.setup.task.state(m)) for k, m in self.setup.round.beside(self.round).items()}

    def measured(self, entry: dict[str, Any]) -> None:
        """A line was written about the state as it is."""
        model = self.setup.round.model(self.round)  # and not all of the round's state, which may be large
        self.best.hear(entry, lambda: _on_host(model))

    def begin_digest(self, round: Tree) -> None:
        """Ask for the fingerprint of what will be the state, while a device is at work on it."""
        self._digesting = (round, tree.begin_digest(self.setup.round.model(round)))

    def digest(self) -> str:
        asked = self._digesting
        return asked[1]() if asked is not None and asked[0] is self.round else self._digest(self.round)

    def checkpoint(self) -> None:
        """Write everything a resumed run needs; on rank 0, to which all client state comes."""
        clients = self.engine.state()
        self.world.on_rank_zero(lambda: self._write(clients))

    def salvaged(self) -> str:
        """A rank was lost: keep the last whole round, unless client state went with it. Says where to go on from."""
        if self.world.rank:
            return ""
        if not tree.leaves(self.plan.client_rows) and self.plan.history:
            self._write(self.engine.state())
        return f"Last checkpoint: {checkpoint.last(self.folder)}. Go on with --resume, with any number of ranks."

    def last(self) -> str:
        """Where the last checkpoint is, in words."""
        return checkpoint.last(self.folder) if self.world.rank == 0 else "see rank 0"

    def resume(self) -> bool:
        """Go back to the last checkpoint; without one, to the beginning. Was there one?"""
        saved: list[Saved] = []  # on rank 0, if there is a checkpoint
        self.plan.history[:] = self.world.on_rank_zero(lambda: self._read(saved))
        self.best.replay(self.plan.history)
        if not self.world.any_rank(bool(saved)):
            return False
        self._load(self.world.broadcast_tree(saved[0].round if saved else None))
        self.engine.load(checkpoint.rows(self.folder, saved[0], self.layout) if saved else ())
        return True

    def align(self, entry: dict[str, Any]) -> None:
        """All ranks go on from rank 0's state. Sums are the same everywhere, but unlike processors may round unlike."""
        if self.world.size == 1:
            return
        marks = self.world.all_gather(entry["model"])
        astray = [rank for rank, mark in enumerate(marks) if mark != marks[0]]
        if astray:
            self._load(self.world.broadcast_tree(self.round))
            entry["realigned"] = astray

    def _load(self, round: Tree) -> None:
        self.round = tree.to(round, self.setup.device)

    def _write(self, clients: ClientStates) -> None:
        read, self.best.unwritten = self.best.unwritten, None
        best = None if read is None else read()
        checkpoint.write(self.folder, _on_host(self.round), clients, self.layout, len(self.plan.history), best)
        if best is not None:  # only now: a resumed run goes back to the checkpoint, and so must its best model
            self.folder.save_best(_on_host(self.setup.task.state(best)))

    def _read(self, into: list[Saved]) -> list[dict[str, Any]]:
        """Put what the checkpoint holds into the list, and the record back to where it was."""
        if not self.folder.has_checkpoint():
            return self.folder.cut(0)
        saved = checkpoint.read_checkpoint(self.folder, _on_host(self.round))
        checkpoint.belongs(self.folder, saved.rounds, self._digest(tree.to(saved.round, self.setup.device)))
        into.append(saved)
        if saved.best is not None:
            self.folder.save_best(_on_host(self.setup.task.state(saved.best)))
        elif saved.best_state is not None:
            self.folder.save_best(saved.best_state)
        return [as_read(entry) for entry in self.folder.cut(saved.rounds)]

    def _digest(self, round: Tree) -> str:
        return tree.digest(self.setup.round.model(round))


def _on_host(state: Any) -> Tree:
    """The tree on the host, without a gradient."""
    return tree.map(lambda x: x.detach().cpu(), state)  # type: ignore[no-any-return]
