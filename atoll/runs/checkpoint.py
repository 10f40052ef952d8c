"""What a run goes on from: all that is not in its record, with a fingerprint, so that damage is seen and not used."""

from __future__ import annotations

from atoll import tree
from atoll.errors import RecordError
from atoll.runs.folder import Folder
from atoll.tree import Tree

_NAME = "checkpoint.pt"
_NEW = "Start again in a new folder."


def write(folder: Folder, parts: Tree, rounds: int) -> None:
    """Put the state after so many rounds in the place of the last checkpoint, in one step."""
    folder.settle()
    folder.save(_NAME, {"parts": parts, "round": rounds, "digest": tree.digest(parts)})


def read(folder: Folder) -> tuple[Tree, int]:
    """The state, and after how many rounds it was written."""
    saved = folder.load(_NAME)
    try:
        parts, rounds, digest = saved["parts"], int(saved["round"]), saved["digest"]
        whole = tree.digest(parts) == digest
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError):
        whole = False
    if not whole:
        raise RecordError(f"{folder.path / _NAME}: is damaged (its contents are not what was written). {_NEW}")
    return parts, rounds


def belongs(folder: Folder, rounds: int, model: str) -> None:
    """Refuse a checkpoint that the record does not know."""
    record = folder.record()
    if len(record) < rounds:
        ends = f"the checkpoint is at round {rounds}, the record ends at {len(record)}"
        raise RecordError(f"{folder.path}: {ends}. {_NEW}")
    if rounds and record[rounds - 1].get("model") != model:
        raise RecordError(f"{folder.path / _NAME}: is not the model of round {rounds} in the record. {_NEW}")


def last(folder: Folder) -> str:
    """Where a resumed run would go on, in words."""
    if not folder.has(_NAME):
        return "none was written yet"
    try:
        return f"round {read(folder)[1]} in {folder.path / _NAME}"
    except RecordError:
        return "unreadable"
