"""The models of the workloads as plain PyTorch modules, the same for every peer that takes one.

The parameters are named and sized like Atoll's `linear`, `cnn` and `lenet`.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from common import CLASSES, Job
from real_models import CharLSTM, ResNet18, Transformer
from torch import Tensor, nn


class Linear(nn.Module):
    def __init__(self, inputs: int = 60) -> None:
        super().__init__()
        self.head = nn.Linear(inputs, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


class CNN(nn.Module):
    """pfl-research's CIFAR-10 network."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.conv_dropout = nn.Dropout(0.25)
        self.dense = nn.Linear(64 * 14 * 14, 128)
        self.dense_dropout = nn.Dropout(0.5)
        self.head = nn.Linear(128, CLASSES)
        for layer in (self.conv1, self.conv2, self.dense, self.head):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        x = self.conv_dropout(F.max_pool2d(x, 2))
        return self.head(self.dense_dropout(torch.relu(self.dense(x.flatten(1)))))


class LeNet(nn.Module):
    """NIID-Bench's small network."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.dense1 = nn.Linear(16 * 4 * 4, 120)
        self.dense2 = nn.Linear(120, 84)
        self.head = nn.Linear(84, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = F.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.head(torch.relu(self.dense2(torch.relu(self.dense1(x.flatten(1))))))


class Tutorial(nn.Module):
    """The network of PyTorch's CIFAR-10 tutorial, with which BlazeFL is compared in its paper."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.dense1 = nn.Linear(16 * 5 * 5, 120)
        self.dense2 = nn.Linear(120, 84)
        self.head = nn.Linear(84, CLASSES)

    forward = LeNet.forward


MODELS = {
    **{"a": Linear, "b": CNN, "c": LeNet, "d": Tutorial, "e": partial(Linear, 784)},
    **{"f": ResNet18, "g": Transformer, "h": CharLSTM},
}


def module(job: Job) -> nn.Module:
    """The workload's model with the weights that everyone starts from."""
    model = MODELS[job.name]()
    model.load_state_dict({name: torch.from_numpy(value) for name, value in job.start.items()})
    return model


def arrays(model: nn.Module) -> dict:
    """The parameters of a module as arrays, as an adapter returns them."""
    return {name: value.detach().cpu().numpy().copy() for name, value in model.state_dict().items()}
