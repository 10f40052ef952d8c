"""VGG-9, the larger image model of FedMA and NIID-Bench."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from atoll.tasks.models.shapes import Shape, image

TwoWidths = Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=2, max_length=2)]


class VGG9(nn.Module):
    """VGG-9: six 3x3 convolutions in three pooled blocks (32 to 256 channels), then two dense layers.

    conv 32, 64, pool, 128, 128, pool, channel dropout, 256, 256, pool, dropout, dense 512, 512, dropout, head.
    Wang et al., "Federated Learning with Matched Averaging", ICLR 2020; NIID-Bench runs the same layers under the
    name ModerateCNN, on MNIST with `widths = [1024, 512]`. 3,491,530 parameters on (3, 32, 32) with 10 classes.
    """

    def __init__(
        self,
        inputs: Shape,
        outputs: int,
        widths: TwoWidths = [512, 512],  # noqa: B006 (only read; the schema shows it)
        channel_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.05,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1,
    ) -> None:
        super().__init__()
        channels, height, width = image("vgg9", inputs, smallest=8, why="it halves the image three times")
        self.features = nn.Sequential(
            *_block(channels, 32, 64),
            *_block(64, 128, 128),
            ChannelDropout(channel_dropout),
            *_block(128, 256, 256),
        )
        self.dense = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(256 * (height // 8) * (width // 8), widths[0]),
            nn.ReLU(),
            nn.Linear(widths[0], widths[1]),
            nn.ReLU(),
            nn.Dropout(dropout),
        )
        self.head = nn.Linear(widths[1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.dense(self.features(x).flatten(1)))
        return out


class ChannelDropout(nn.Module):
    """Drops whole channels, as nn.Dropout2d does, but by way of an nn.Dropout, which the task can make a keyed one."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(rate)

    def forward(self, x: Tensor) -> Tensor:
        mask: Tensor = self.dropout(torch.ones_like(x[:, :, :1, :1]))
        return x * mask


def _block(before: int, middle: int, after: int) -> list[nn.Module]:
    return [
        nn.Conv2d(before, middle, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(middle, after, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
