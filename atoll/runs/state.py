"""What a run holds between rounds; how it is written, read again, and kept the same on all ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from atoll import tree
from atoll.attacks import Canaries
from atoll.engines import Kept, RowStore, together
from atoll.engines.ranks import HomeRows, World
from atoll.experiment.setup import Setup
from atoll.records import RunFolder
from atoll.runs import checkpoint
from atoll.runs.record_line import as_read
from atoll.tree import Tree


@dataclass(eq=False)
class State:
    """On many ranks each holds the same, but for the clients' memory; only rank 0 writes."""

    setup: Setup
    folder: RunFolder
    world: World
    server: Tree
    transforms: Tree
    memory: RowStore | HomeRows
    canaries: Canaries | None
    history: list[dict[str, Any]] = field(default_factory=list)  # the lines of the record, without ids

    def model(self) -> Tree:
        """The learned model, keyed like the module's state."""
        return _on_host(self.setup.task.state(self.setup.topology.model(self.server)))

    def digest(self) -> str:
        """A fingerprint of the model."""
        return self._digest(self.server)

    def checkpoint(self) -> None:
        """Write everything a resumed run needs; on rank 0, to which all memory comes."""
        held = self.memory.gathered() if isinstance(self.memory, HomeRows) else self.memory
        self.world.first(lambda: self._write(held))

    def salvaged(self) -> str:
        """A rank was lost: keep the last whole round, unless memory went with the rank. Says where to go on from."""
        if self.world.rank:
            return ""
        if self.memory.empty and self.history:
            self._write(self.memory)  # type: ignore[arg-type]
        return f"Last checkpoint: {checkpoint.last(self.folder)}. Go on with --resume, with any number of ranks."

    def last(self) -> str:
        """Where the last checkpoint is, in words."""
        return checkpoint.last(self.folder) if self.world.rank == 0 else "see rank 0"

    def resume(self) -> None:
        """Go back to the last checkpoint; without one, to the beginning."""
        parts: list[Tree] = []  # on rank 0, if there is a checkpoint
        self.history = self.world.first(lambda: self._read(parts))
        if not self.world.any(bool(parts)):
            return
        names = ("server", "state") if self.canaries is None else ("server", "state", "canaries")
        now = self.world.share(tree.select(parts[0], names) if parts else None)
        self._load(now)
        if self.canaries is not None:
            self.canaries.load(now["canaries"])
        if isinstance(self.memory, HomeRows):
            self.memory.load(parts[0]["memory"] if parts else None)

    def align(self, entry: dict[str, Any]) -> None:
        """All ranks go on from rank 0's state. Sums are the same everywhere, but unlike processors may round unlike."""
        if self.world.size == 1:
            return
        marks = self.world.gather(entry["model"])
        astray = [rank for rank, mark in enumerate(marks) if mark != marks[0]]
        if astray:
            self._load(self.world.share({"server": self.server, "state": self.transforms}))
            entry["realigned"] = astray

    def _load(self, now: Tree) -> None:
        self.server, self.transforms = (tree.to(now[k], self.setup.device) for k in ("server", "state"))

    def _write(self, memory: RowStore | Kept) -> None:
        audit = {} if self.canaries is None else {"canaries": self.canaries.state()}
        parts = _on_host({"server": self.server, "state": self.transforms, **audit})
        checkpoint.write(self.folder, parts, memory, len(self.history))

    def _read(self, parts: list[Tree]) -> list[dict[str, Any]]:
        """Put what the checkpoint holds into `parts`, and the record back to where it was."""
        if not self.folder.has_checkpoint():
            return self.folder.cut(0)
        saved = checkpoint.read(self.folder)
        checkpoint.belongs(self.folder, saved.rounds, self._digest(tree.to(saved.parts["server"], self.setup.device)))
        pieces = checkpoint.rows(self.folder, saved, self.memory.layout)
        if isinstance(self.memory, HomeRows):
            parts.append({**saved.parts, "memory": together(pieces, self.memory.layout)})
        else:
            self.memory.load(pieces)
            parts.append(saved.parts)
        return [as_read(entry) for entry in self.folder.cut(saved.rounds)]

    def _digest(self, server: Tree) -> str:
        return tree.digest(self.setup.topology.model(server))


def _on_host(state: Any) -> Tree:
    """The tree on the host, without a gradient."""
    return tree.map(lambda x: x.detach().cpu(), state)  # type: ignore[no-any-return]
