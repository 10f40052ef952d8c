"""What a run goes on from: all that is not in its record, with a fingerprint, so that damage is seen and not used.

`checkpoint.pt` holds the round's state and names the file with what clients keep, `memory-ROUND.rows`: the ids of
those that keep anything, then their rows. Clients may be many, so it is written and read a bounded piece at a time. It
is whole before checkpoint.pt names it, and goes only after another is named.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from atoll import tree
from atoll.core import ClientStates
from atoll.engines import RowLayout
from atoll.errors import RecordError
from atoll.records import RunFolder
from atoll.tree import Tree

_NEW = "Start again in a new folder."
_PIECE = 8 << 20  # bytes of rows that are read at a time


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds."""

    round: Tree  # the state of the round
    rounds: int
    memory: dict[str, Any]  # file, clients, layout and digest; {} where no client has any
    best: Tree | None = None  # the best model, where best.pt may still be of an earlier round
    best_state: Tree | None = None  # the same of an older version, which kept it keyed like the module's state


def write(
    folder: RunFolder, round: Tree, clients: ClientStates, layout: RowLayout, rounds: int, best: Tree | None = None
) -> None:
    """Put the state after so many rounds in the place of the last checkpoint, in one step.

    `best` is what is learned of the best model, if that is of a round since then. It is no part of the digest: equal
    runs may have been checkpointed after other rounds.
    """
    folder.settle()
    memory = _write_rows(folder, clients, layout, rounds)
    parts = {"round": round}
    whole = {"parts": parts, "round": rounds, "memory": memory, "digest": _fingerprint(parts, memory)}
    if best is not None:
        whole["best"] = {"learned": best, "digest": tree.digest(best)}
    folder.save_checkpoint(whole, memory.get("file"))


def read_checkpoint(folder: RunFolder, first: Tree | None = None) -> Saved:
    """The state, after how many rounds it was written, and where the clients' state is.

    `first` is the run's state before its first round: what an older version did not keep is taken from there.
    """
    saved = folder.checkpoint()
    try:
        parts, memory = saved["parts"], saved["memory"]
        whole = _fingerprint(parts, memory) == saved["digest"]
        round = parts["round"] if "round" in parts else _upgraded(parts, first or {})
        best = saved.get("best", {})
        learned, state = best.get("learned"), best.get("model")
        whole = whole and (not best or tree.digest(state if learned is None else learned) == best["digest"])
        checkpoint = Saved(round, int(saved["round"]), memory, learned, state)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError):
        whole = False
    if not whole:
        raise RecordError(f"{folder.checkpoint_path}: is damaged (its contents are not what was written). {_NEW}")
    return checkpoint


def _upgraded(parts: Tree, first: Tree) -> Tree:
    """A checkpoint of version 0.1: the server, the transforms' state, and canaries beside them."""
    chain = first.get("chain", {})
    if "canaries" in parts:
        canaries = {**chain.get("canaries", {}), **parts["canaries"]}
        chain = {"transforms": _filled(parts["state"], chain.get("transforms", {})), "canaries": canaries}
    else:
        chain = _filled(parts["state"], chain)
    return {**first, "server": parts["server"], "chain": chain}


def _filled(saved: Tree, first: Tree) -> Tree:
    """What was kept, and what was not kept then as it is at first."""
    new = {k: _filled(saved[k], v) if isinstance(v, dict) and k in saved else saved.get(k, v) for k, v in first.items()}
    return new


def rows(folder: RunFolder, saved: Saved, layout: RowLayout) -> Iterator[tuple[Tensor, Tree]]:
    """The clients' memory, a piece at a time; an error at the end, at the latest, if it is not what was written."""
    memory = saved.memory
    if not memory:
        return
    path = folder.path / memory["file"]
    damaged = RecordError(f"{path}: is damaged (its contents are not what was written). {_NEW}")
    if memory["layout"] != layout.mark:
        raise damaged
    try:
        with path.open("rb") as f:
            yield from _read_rows(f, memory, layout, damaged)
    except OSError as e:
        raise RecordError(f"{path}: cannot be read ({e.strerror}). {_NEW}") from e


def belongs(folder: RunFolder, rounds: int, model: str) -> None:
    """Refuse a checkpoint that the record does not know."""
    record = folder.record()
    if len(record) < rounds:
        ends = f"the checkpoint is at round {rounds}, the record ends at {len(record)}"
        raise RecordError(f"{folder.path}: {ends}. {_NEW}")
    if rounds and record[rounds - 1].get("model") != model:
        raise RecordError(f"{folder.checkpoint_path}: is not the model of round {rounds} in the record. {_NEW}")


def last(folder: RunFolder) -> str:
    """Where a resumed run would go on, in words."""
    if not folder.has_checkpoint():
        return "none was written yet"
    try:
        return f"round {read_checkpoint(folder).rounds} in {folder.checkpoint_path}"
    except RecordError:
        return "unreadable"


def _write_rows(folder: RunFolder, clients: ClientStates, layout: RowLayout, rounds: int) -> dict[str, Any]:
    ids = clients.ids()
    if not len(ids):
        return {}
    seen = hashlib.blake2b(digest_size=16)

    def hashed(piece: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        seen.update(piece.data)
        return piece

    pieces = chain([ids.numpy().astype("<i8")], (layout.pack(held) for _, held in clients.pieces()))
    name = folder.stream_client_state(rounds, (hashed(p) for p in pieces))
    return {"file": name, "clients": len(ids), "layout": layout.mark, "digest": seen.hexdigest()}


def _read_rows(
    f: BinaryIO, memory: dict[str, Any], layout: RowLayout, damaged: RecordError
) -> Iterator[tuple[Tensor, Tree]]:
    seen = hashlib.blake2b(digest_size=16)

    def take(n: int) -> bytearray:
        piece = bytearray(n)
        if f.readinto(piece) != n:  # type: ignore[attr-defined]
            raise damaged
        seen.update(piece)
        return piece

    ids = torch.from_numpy(np.frombuffer(take(8 * memory["clients"]), "<i8"))
    for some in torch.split(ids, layout.fitting(_PIECE)):  # type: ignore[no-untyped-call]
        yield some, layout.views(np.frombuffer(take(len(some) * layout.width), np.uint8))
    if f.read(1) or seen.hexdigest() != memory["digest"]:
        raise damaged


def _fingerprint(parts: Tree, memory: dict[str, Any]) -> str:
    h = hashlib.blake2b(tree.digest(parts).encode(), digest_size=16)
    h.update(repr(sorted(memory.items())).encode())
    return h.hexdigest()
