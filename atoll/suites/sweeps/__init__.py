"""Sweeps: one file with axes in; many runs, side by side or on a cluster, and one report out.

    sweep_table.py    the [sweep] table, checked     axes.py            from the table to cells: complete experiments
    naming.py         short names for cells          stacking.py        which cells can be one stack
    cell_tasks.py     what one worker runs           local_executor.py  tasks in this process, or in several
    worker.py         such a process                 signals.py         Ctrl-C and SIGTERM
    ray_executor.py   tasks on a Ray cluster         sweep.py           all of it in one call
    sweep_outcome.py  what came of a sweep           sweep_progress.py  a bar over the cells
    packed_callbacks.py  callbacks on their way to the runs

>>> import atoll
>>> done = atoll.sweep.run({
...     "rounds": 1,
...     "data": "digits",
...     "partition": {"name": "iid", "clients": 5},
...     "algorithm": "fedavg",
...     "sweep": {"algorithm.lr": [0.1, 0.2]},
... }, out=getfixture("tmp_path") / "sweep")
>>> done.status, [len(run.history) for run in done.runs]
('finished', [1, 1])
"""

from atoll.suites.sweeps.axes import SweepCell, expand
from atoll.suites.sweeps.cell_tasks import Events
from atoll.suites.sweeps.signals import terminable
from atoll.suites.sweeps.stacking import stackable, stacks
from atoll.suites.sweeps.sweep import Executor, SweepPlan, default_folder, plan, run
from atoll.suites.sweeps.sweep_outcome import Sweep
from atoll.suites.sweeps.sweep_progress import CellLines, CellsBar
from atoll.suites.sweeps.sweep_table import Resources, SweepTable
from atoll.suites.sweeps.worker import leave_if_worker

__all__ = [
    "CellLines",
    "CellsBar",
    "Events",
    "Executor",
    "Resources",
    "Sweep",
    "SweepCell",
    "SweepPlan",
    "SweepTable",
    "default_folder",
    "expand",
    "leave_if_worker",
    "plan",
    "run",
    "stackable",
    "stacks",
    "terminable",
]
