"""pfl-research's convolutional network for CIFAR-10."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from atoll.tasks.kernels import max_pool2d
from atoll.tasks.models.shapes import Shape, image


class CNN(nn.Module):
    """pfl-research's CIFAR-10 CNN: two 3x3 convolutions, one pooling, a dense layer of 128, two dropouts.

    Granqvist et al., "pfl-research: simulation framework for accelerating research in Private Federated Learning",
    NeurIPS 2024. Xavier-uniform weights. 1,626,442 parameters on (3, 32, 32) with 10 classes.

    `biases = "zero"` is the TensorFlow model that pfl-research set out to match; its PyTorch code leaves the biases
    at PyTorch's default, uniform in +-1/sqrt(fan_in): `biases = "uniform"`.
    """

    def __init__(
        self,
        inputs: Shape,
        outputs: int,
        conv_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.25,
        dense_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5,
        biases: Literal["zero", "uniform"] = "zero",
    ) -> None:
        super().__init__()
        channels, height, width = image("cnn", inputs, smallest=6, why="its two 3x3 convolutions do not pad")
        self.conv1 = nn.Conv2d(channels, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.conv_dropout = nn.Dropout(conv_dropout)
        self.dense = nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128)
        self.dense_dropout = nn.Dropout(dense_dropout)
        self.head = nn.Linear(128, outputs)
        for layer in (self.conv1, self.conv2, self.dense, self.head):
            nn.init.xavier_uniform_(layer.weight)
            if biases == "zero" and layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = max_pool2d(self.conv2(torch.relu(self.conv1(x))), 2)
        x = self.conv_dropout(torch.relu(x))  # after pooling, which commutes: a quarter of the numbers
        x = self.dense_dropout(torch.relu(self.dense(x.flatten(1))))
        out: Tensor = self.head(x)
        return out
