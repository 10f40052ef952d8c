"""Reptile."""

from atoll.algorithms.fedopt import FedOpt, Straight
from atoll.algorithms.optimizers import PLAIN_SGD, Optimizer
from atoll.core import Positive, Share, Task


def reptile(task: Task, lr: Positive, server_lr: Share = 0.5, optimizer: Optimizer = PLAIN_SGD) -> FedOpt:
    """Move a share of the way to the clients' plain mean: a start from which few steps suffice (Nichol et al., 2018).

    w <- w + server_lr * mean(w_k - w): FedAvg in which all clients count the same. What counts is the accuracy *after*
    local training: evaluate.after = true.
    """
    return FedOpt(task, lr, server_lr, Straight(), optimizer, weights="equal")
