"""A run: its rounds, its folder, its state, and how to go on with it."""

from atoll.runs.api import run, simulate
from atoll.runs.callbacks import Callback, LiveRun, Watcher, checked, silent
from atoll.runs.checkpoint import read_checkpoint
from atoll.runs.drivers import drive, on_promises
from atoll.runs.environment import hardware, versions
from atoll.runs.forecast import Forecast, virtual_time
from atoll.runs.lifecycle import default_folder, resumed_choice
from atoll.runs.progress import Bar, LiveBar, LogLines, Shown, live_progress, metric_in
from atoll.runs.python_inputs import ARRAYS
from atoll.runs.run_loop import RunLoop
from atoll.runs.run_result import Run
from atoll.runs.run_stacked import run_together
from atoll.runs.run_views import flat
from atoll.runs.stackable import partition_names, stack_shape, why_not_stackable

__all__ = [
    "ARRAYS",
    "Bar",
    "Callback",
    "Forecast",
    "LiveBar",
    "LiveRun",
    "LogLines",
    "Run",
    "RunLoop",
    "Shown",
    "Watcher",
    "checked",
    "default_folder",
    "drive",
    "flat",
    "hardware",
    "live_progress",
    "metric_in",
    "on_promises",
    "partition_names",
    "read_checkpoint",
    "resumed_choice",
    "run",
    "run_together",
    "silent",
    "simulate",
    "stack_shape",
    "versions",
    "virtual_time",
    "why_not_stackable",
]
