"""Atoll: simulate, benchmark and evaluate federated learning.

>>> import atoll
>>> done = atoll.run({
...     "rounds": 2,
...     "data": "digits",
...     "partition": {"name": "iid", "clients": 5},
...     "algorithm": {"name": "fedavg", "lr": 0.1},
... }, out=getfixture("tmp_path") / "run")
>>> len(done.history)
2
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atoll import callbacks
    from atoll import suites as bench
    from atoll.experiment import Experiment
    from atoll.runs import Callback, Run, run, simulate
    from atoll.suites import sweeps as sweep

if "OMP_WAIT_POLICY" not in os.environ:
    # Threads of a kernel that wait for each other spin for a few microseconds, then sleep. By default they spin on
    # while other processes want the core: rounds take up to forty times longer. Heeded if torch is loaded after this.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")

__version__ = "0.1.0"
_ROOMS = {"bench": "atoll.suites", "callbacks": "atoll.callbacks", "sweep": "atoll.suites.sweeps"}
__all__ = ["Callback", "Experiment", "Run", "__version__", "bench", "callbacks", "run", "simulate", "sweep"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that `atoll list` and `atoll report` need not wait for torch."""
    if name == "Experiment":
        from atoll.experiment import Experiment

        return Experiment
    if name in ("Callback", "Run", "run", "simulate"):
        from atoll import runs

        return getattr(runs, name)
    if name in _ROOMS:  # atoll.sweep.run(...)
        return importlib.import_module(_ROOMS[name])
    raise AttributeError(f"module 'atoll' has no attribute {name!r}")
