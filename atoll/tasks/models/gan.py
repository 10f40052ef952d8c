"""A classifier that also tells real inputs from made-up ones, and a generator of such inputs."""

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from atoll.tasks.models.shapes import Shape


class Gan(nn.Module):
    """A perceptron with one logit for each class, and beside it a generator that `fedgan` trains against it.

    The classifier calls an input real with probability Z / (Z + 1), Z the sum of exp(logit) (Salimans et al., 2016).
    The generator is a perceptron of one hidden layer from `noise` normal numbers to an input between 0 and 1.
    """

    def __init__(
        self,
        inputs: Shape,
        outputs: int,
        width: Annotated[int, Field(ge=1)] = 64,
        generator_width: Annotated[int, Field(ge=1)] = 64,
        noise: Annotated[int, Field(ge=1)] = 16,
    ) -> None:
        super().__init__()
        size = math.prod(inputs)
        self.generator = nn.ModuleDict(
            {"hidden": nn.Linear(noise, generator_width), "out": nn.Linear(generator_width, size)}
        )
        self.hidden = nn.Linear(size, width)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.hidden(x.flatten(1))))
        return out
