"""Labels as chances, so that DLG can look for them: the task's cross-entropy of classes, of chances in their place."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from atoll.algorithms import ALGORITHMS, keep_statistics_local
from atoll.core import Algorithm, class_logits
from atoll.errors import ConfigError
from atoll.experiment import Setup, build
from atoll.tasks import Supervised


@dataclass(frozen=True)
class ChancesLoss:
    """-sum_k chances_k log p_k, the mean over real examples. At chances of 0 and 1 it is cross-entropy."""

    def batch_loss(self, out: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        each = -(y * F.log_softmax(class_logits(out), -1)).sum(-1)
        return (each * mask).sum() / mask.sum().clamp(min=1e-6)


def soft_task(task: Supervised) -> Supervised:
    """The same model, with chances for labels."""
    soft = copy.copy(task)
    soft.objective = ChancesLoss()  # type: ignore[assignment]
    return soft


def soft_algorithm(setup: Setup) -> Algorithm:
    """The experiment's algorithm on that task."""
    if setup.second_models:
        raise ConfigError("--method: DLG looks for labels, which a second model would need, too. Use --method idlg.")
    experiment = setup.experiment
    task, clients = soft_task(setup.task), setup.partition.size
    algorithm: Algorithm = build(ALGORITHMS, experiment.algorithm, where="algorithm", task=task, population=clients)
    local = setup.model["buffers"] and experiment.task.batch_norm == "local"
    return keep_statistics_local(algorithm) if local else algorithm
