"""Contracts: what a task, an algorithm, a transform, a reducer and an engine are. No implementations."""

from atoll.core.algorithm import Algorithm
from atoll.core.autograd import functional, gradient_and_value, is_functional
from atoll.core.engine import Engine, Job, Result
from atoll.core.reducer import Partial, Reducer
from atoll.core.settings import Positive, Share, Unsigned
from atoll.core.task import GivesGradient, Model, Task
from atoll.core.transform import Chain, Spec, Transform
from atoll.core.types import Cohort, Info, Participation, Total, Update

__all__ = [
    "Algorithm",
    "Chain",
    "Cohort",
    "Engine",
    "GivesGradient",
    "Info",
    "Job",
    "Model",
    "Partial",
    "Participation",
    "Positive",
    "Reducer",
    "Result",
    "Share",
    "Spec",
    "Task",
    "Total",
    "Transform",
    "Unsigned",
    "Update",
    "functional",
    "gradient_and_value",
    "is_functional",
]
