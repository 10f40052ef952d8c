"""Contracts: what a task, an algorithm, a transform, a reducer and an engine are. No implementations."""

from atoll.core.algorithm import Algorithm, missing_hooks
from atoll.core.autograd import functional, gradient_and_value, is_functional
from atoll.core.engine import Begun, Engine, Job, Result, begun
from atoll.core.reducer import Partial, Reducer, lift
from atoll.core.settings import Positive, Share, Unsigned
from atoll.core.task import GivesGradient, Model, SecondModel, Task
from atoll.core.traits import Traits
from atoll.core.transform import Chain, Scaling, Spec, Transform
from atoll.core.types import Cohort, Info, Participation, Total, Update

__all__ = [
    "Algorithm",
    "Begun",
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
    "Scaling",
    "SecondModel",
    "Share",
    "Spec",
    "Task",
    "Total",
    "Traits",
    "Transform",
    "Unsigned",
    "Update",
    "begun",
    "functional",
    "gradient_and_value",
    "is_functional",
    "lift",
    "missing_hooks",
]
