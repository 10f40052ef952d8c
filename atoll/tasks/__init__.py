"""What is learned: any module plus a loss, the shipped models, and the metrics."""

from atoll.tasks.dp_sgd import PrivateTask, leak_error, unsupported_parts
from atoll.tasks.ghost import ghost_layers
from atoll.tasks.layers import make_stackable
from atoll.tasks.lora import LoraLinear, adapted, merged
from atoll.tasks.losses import BatchLoss, Loss, batch_loss, loss_of_one_logit
from atoll.tasks.metrics import METRICS, USUAL, Better, Metric, ScoreFunction, better, metrics_for, spread
from atoll.tasks.models import MODELS
from atoll.tasks.named_losses import LOSSES, OF_CLASSES
from atoll.tasks.objectives import Classification, NextToken, Objective, Regression
from atoll.tasks.supervised import Supervised

__all__ = [
    "LOSSES",
    "METRICS",
    "MODELS",
    "OF_CLASSES",
    "USUAL",
    "BatchLoss",
    "Better",
    "Classification",
    "LoraLinear",
    "Loss",
    "Metric",
    "NextToken",
    "Objective",
    "PrivateTask",
    "Regression",
    "ScoreFunction",
    "Supervised",
    "adapted",
    "batch_loss",
    "better",
    "ghost_layers",
    "leak_error",
    "loss_of_one_logit",
    "make_stackable",
    "merged",
    "metrics_for",
    "spread",
    "unsupported_parts",
]
