"""A small network for clients and a large one for the server, joined by features."""

import itertools
import math
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from atoll.core import apply_layers
from atoll.tasks.models.shapes import Shape, image

Width = Annotated[int, Field(ge=1)]


class Gkt(nn.Module):
    """An extractor with a classifier of its own, which are a client's, and a tower, which is the server's: `fedgkt`.

    The extractor puts out `features` numbers; with `channels` it begins with a convolution of 3 x 3. The tower is a
    perceptron of these `widths` on the features. What the model predicts is the tower of the extractor.
    """

    def __init__(
        self,
        inputs: Shape,
        outputs: int,
        features: Width = 32,
        widths: list[Width] = [256, 128],  # noqa: B006 (only read; the schema shows it)
        channels: Annotated[int, Field(ge=0)] = 0,
    ) -> None:
        super().__init__()
        size, first = math.prod(inputs), list[nn.Module]()
        if channels:
            plane = image("gkt", inputs)
            first, size = [nn.Conv2d(plane[0], channels, 3, padding=1)], channels * plane[1] * plane[2]
        self.extractor = nn.ModuleList([*first, nn.Linear(size, features)])
        self.classifier = nn.ModuleList([nn.Linear(features, outputs)])
        sizes = (features, *widths, outputs)
        self.tower = nn.ModuleList([nn.Linear(a, b) for a, b in itertools.pairwise(sizes)])

    def forward(self, x: Tensor) -> Tensor:
        params = dict(self.named_parameters())
        features = apply_layers(params, "extractor", x).relu()
        return apply_layers(params, "tower", features)
