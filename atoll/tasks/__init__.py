"""What is learned: any module plus a loss, the shipped models, and the metrics."""

from atoll.tasks.dp_sgd import PrivateTask, leak_error, unsupported_layers
from atoll.tasks.ghost import ghost_layers
from atoll.tasks.metrics import METRICS, Metric, metrics_for, spread
from atoll.tasks.models import MODELS
from atoll.tasks.objectives import Classification, Loss, NextToken, Objective, Regression
from atoll.tasks.supervised import Supervised

__all__ = [
    "METRICS",
    "MODELS",
    "Classification",
    "Loss",
    "Metric",
    "NextToken",
    "Objective",
    "PrivateTask",
    "Regression",
    "Supervised",
    "ghost_layers",
    "leak_error",
    "metrics_for",
    "spread",
    "unsupported_layers",
]
