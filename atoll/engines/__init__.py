"""Where a round runs: the reference loop, the stack, and workers side by side."""

from atoll.engines.autotune import Probe, Scratch, default_path
from atoll.engines.budget import client_bytes, default_budget, total_bytes
from atoll.engines.choice import ENGINES, AnyEngine, Choice, Ground, make, taken, work_mark
from atoll.engines.client_state import Kept, RowStore, together
from atoll.engines.evaluation import measure, measure_each
from atoll.engines.loop import Loop
from atoll.engines.precision import arithmetic
from atoll.engines.row_file import Layout
from atoll.engines.threads import Threads
from atoll.engines.vector.vector import Vector

__all__ = [
    "ENGINES",
    "AnyEngine",
    "Choice",
    "Ground",
    "Kept",
    "Layout",
    "Loop",
    "Probe",
    "RowStore",
    "Scratch",
    "Threads",
    "Vector",
    "arithmetic",
    "client_bytes",
    "default_budget",
    "default_path",
    "make",
    "measure",
    "measure_each",
    "taken",
    "together",
    "total_bytes",
    "work_mark",
]
