"""Contracts and the small values that pass between rooms. No implementations."""

from atoll.core.algorithm import Algorithm, missing_hooks
from atoll.core.autograd import functional, gradient_and_value, is_functional
from atoll.core.engine import ClientStates, Engine
from atoll.core.protocol import Client, Protocol, Server
from atoll.core.reducer import Reducer, StackReducer
from atoll.core.requests import (
    Columns,
    Evaluate,
    Evaluated,
    Exchange,
    Message,
    Pending,
    Program,
    Request,
    Train,
    Trained,
)
from atoll.core.round import Context, Outcome, Play, Round, Traffic
from atoll.core.settings import Positive, Share, Unsigned
from atoll.core.task import GivesGradient, Model, SecondModel, Task
from atoll.core.traits import Traits
from atoll.core.transform import Chain, Scaling, Spec, Transform
from atoll.core.types import Cohort, Info, Participation, Stack, Total, Update

__all__ = [
    "Algorithm",
    "Chain",
    "Client",
    "ClientStates",
    "Cohort",
    "Columns",
    "Context",
    "Engine",
    "Evaluate",
    "Evaluated",
    "Exchange",
    "GivesGradient",
    "Info",
    "Message",
    "Model",
    "Outcome",
    "Participation",
    "Pending",
    "Play",
    "Positive",
    "Program",
    "Protocol",
    "Reducer",
    "Request",
    "Round",
    "Scaling",
    "SecondModel",
    "Server",
    "Share",
    "Spec",
    "Stack",
    "StackReducer",
    "Task",
    "Total",
    "Traffic",
    "Train",
    "Trained",
    "Traits",
    "Transform",
    "Unsigned",
    "Update",
    "functional",
    "gradient_and_value",
    "is_functional",
    "missing_hooks",
]
