"""Callbacks on their way to the runs of a sweep: each run has copies of its own, wherever it goes on."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from atoll.errors import ConfigError
from atoll.runs import Callback, checked


@dataclass(frozen=True)
class PackedCallbacks:
    """Copies and not the callbacks themselves, with one worker as with many: runs of a stack go on side by side."""

    pickled: bytes = pickle.dumps([])

    def copies(self) -> list[Callback]:
        """For one run."""
        callbacks: list[Callback] = pickle.loads(self.pickled)
        return callbacks


def pack(callbacks: Sequence[Callback], executor: str, jobs: int) -> PackedCallbacks:
    """What was handed over, if it can be copied, and imported where the runs are."""
    given = checked(callbacks)
    for callback in given:
        kind = type(callback)
        try:
            pickle.loads(pickle.dumps(callback))
        except Exception as e:  # whatever a stranger's class raises
            raise ConfigError(
                f"callbacks: {kind.__name__} cannot be pickled ({e}), and every run of a sweep has a copy of its own. "
                "Define it in a module, and open files in on_start."
            ) from e
        if kind.__module__ == "__main__" and not _is_importable(executor, jobs):
            raise ConfigError(
                f"callbacks: {kind.__name__} is defined here, where worker processes cannot import it. Put it in a "
                "module of its own, or leave jobs and executor out."
            )
    return PackedCallbacks(pickle.dumps(given))


def _is_importable(executor: str, jobs: int) -> bool:
    """Does a worker have what was defined in the program itself? A new Python imports its file, if there is one."""
    return executor == "local" and (jobs == 1 or vars(sys.modules["__main__"]).get("__file__") is not None)
