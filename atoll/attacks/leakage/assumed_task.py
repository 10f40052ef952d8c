"""The task as an attacker assumes it: with labels as chances, which DLG can look for, or with frozen BatchNorm."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from atoll.algorithms import ALGORITHMS, keep_statistics_local
from atoll.core import Algorithm, class_logits
from atoll.errors import ConfigError
from atoll.experiment import Setup, build
from atoll.tasks import Supervised, make_stackable

BatchNormMode = Literal["training", "frozen"]


@dataclass(frozen=True)
class ChancesLoss:
    """-sum_k chances_k log p_k, the mean over real examples. At chances of 0 and 1 it is cross-entropy."""

    takes_linear_scores: ClassVar[bool] = False

    def batch_loss(self, out: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        each = -(y * F.log_softmax(class_logits(out), -1)).sum(-1)
        return (each * mask).sum() / mask.sum().clamp(min=1e-6)


def with_chances(task: Supervised) -> Supervised:
    """The same model, with chances for labels."""
    soft = copy.copy(task)
    soft.objective = ChancesLoss()  # type: ignore[assignment]
    return soft


def with_frozen_statistics(task: Supervised) -> Supervised:
    """The same model as when it predicts: BatchNorm by the broadcast statistics, as attacks before 2022 took it."""
    frozen = copy.copy(task)
    frozen.model = make_stackable(task.original, "freeze").to(task.device)
    return frozen


def assumed_algorithm(setup: Setup, joint_labels: bool, mode: BatchNormMode) -> Algorithm:
    """The experiment's algorithm, on the task as the attacker assumes it."""
    if not joint_labels and mode == "training":
        return setup.algorithm
    if setup.second_models:
        raise ConfigError("--method: this attack changes the task, which a second model shares. Use --method idlg.")
    task = with_chances(setup.task) if joint_labels else setup.task
    task = task if mode == "training" else with_frozen_statistics(task)
    experiment, clients = setup.experiment, setup.partition.size
    algorithm: Algorithm = build(ALGORITHMS, experiment.algorithm, where="algorithm", task=task, population=clients)
    local = setup.model["buffers"] and experiment.task.batch_norm == "local"
    return keep_statistics_local(algorithm) if local else algorithm
