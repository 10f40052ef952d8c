"""Where the work of rounds is done: the reference loop, the stack, workers side by side, and many processes."""

from atoll.cpu_threads import cpu_threads
from atoll.engines.autotune import small
from atoll.engines.budget import client_bytes, default_budget, total_bytes
from atoll.engines.choice import ENGINES, Choice, make
from atoll.engines.client_state import ClientStore, Kept, RowStore, join_pieces
from atoll.engines.device_data import Decode, DeviceData, EvaluationData, with_places
from atoll.engines.evaluation import join_evaluated, measure, measure_each, measure_rows, measurement, metrics_by_group
from atoll.engines.local import LocalEngine
from atoll.engines.loop import Loop
from atoll.engines.precision import arithmetic, processor_has_bfloat16
from atoll.engines.program import TOO_LONG, batch_of
from atoll.engines.row_file import RowLayout
from atoll.engines.threads import Threads
from atoll.engines.vector import Vector

__all__ = [
    "ENGINES",
    "TOO_LONG",
    "Choice",
    "ClientStore",
    "Decode",
    "DeviceData",
    "EvaluationData",
    "Kept",
    "LocalEngine",
    "Loop",
    "RowLayout",
    "RowStore",
    "Threads",
    "Vector",
    "arithmetic",
    "batch_of",
    "client_bytes",
    "cpu_threads",
    "default_budget",
    "join_evaluated",
    "join_pieces",
    "make",
    "measure",
    "measure_each",
    "measure_rows",
    "measurement",
    "metrics_by_group",
    "processor_has_bfloat16",
    "small",
    "total_bytes",
    "with_places",
]
