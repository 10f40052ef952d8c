"""A small convolutional network with or without normalisation, to attack: [task] model = "conv_net:ConvNet"."""

from typing import Literal

from torch import Tensor, nn


class ConvNet(nn.Module):
    """Two 3x3 convolutions with strides in place of pooling, sigmoids as in DLG's LeNet, one dense layer."""

    def __init__(
        self,
        inputs: tuple[int, ...],
        outputs: int,
        norm: Literal["none", "batch"] = "none",
        width: int = 12,
        activation: Literal["sigmoid", "relu"] = "sigmoid",
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = inputs[0]
        for stride in (1, 2):
            layers.append(nn.Conv2d(before, width, 3, stride, 1))
            layers += [nn.BatchNorm2d(width)] if norm == "batch" else []
            layers.append(nn.Sigmoid() if activation == "sigmoid" else nn.ReLU())
            before = width
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width * -(-inputs[1] // 2) * -(-inputs[2] // 2), outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x).flatten(1))
        return out
