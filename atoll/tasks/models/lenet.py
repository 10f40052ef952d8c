"""NIID-Bench's convolutional network."""

import torch
from torch import Tensor, nn

from atoll.tasks.kernels import max_pool2d
from atoll.tasks.models.shapes import Shape, image


class LeNet(nn.Module):
    """NIID-Bench's small CNN: two 5x5 convolutions with pooling, then dense layers of 120 and 84.

    Li et al., "Federated Learning on Non-IID Data Silos", ICDE 2022, after LeCun's LeNet-5 (1998).
    44,426 parameters on (1, 28, 28) with 10 classes, 62,006 on (3, 32, 32).
    """

    def __init__(self, inputs: Shape, outputs: int) -> None:
        super().__init__()
        channels, height, width = image("lenet", inputs, smallest=16, why="its two 5x5 convolutions do not pad")
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.dense1 = nn.Linear(16 * _left(height) * _left(width), 120)
        self.dense2 = nn.Linear(120, 84)
        self.head = nn.Linear(84, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(max_pool2d(self.conv1(x), 2))  # ReLU after pooling, which commutes: a quarter of the numbers
        x = torch.relu(max_pool2d(self.conv2(x), 2))
        x = torch.relu(self.dense1(x.flatten(1)))
        x = torch.relu(self.dense2(x))
        out: Tensor = self.head(x)
        return out


def _left(side: int) -> int:
    """Pixels left of a side after both convolutions (-4 each) and poolings (halved, rounded down)."""
    return ((side - 4) // 2 - 4) // 2
