"""Multi-layer perceptrons."""

import itertools
import math
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from atoll.tasks.models.shapes import Shape


class MLP(nn.Module):
    """A multi-layer perceptron on the flattened example: ReLU layers of the given widths, then a linear layer.

    The default widths are the 2NN of McMahan et al. (AISTATS 2017). NIID-Bench (Li et al., ICDE 2022) uses
    `widths = [32, 16, 8]` and `init = "niid"` (weights from N(0, 0.1), biases 0.1); FedEval (Chai et al., 2020)
    uses `widths = [512, 512]` and `dropout = 0.2`.
    """

    def __init__(
        self,
        inputs: Shape,
        outputs: int,
        widths: list[Annotated[int, Field(ge=1)]] = [200, 200],  # noqa: B006 (only read; the schema shows it)
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
        init: Literal["default", "niid"] = "default",
    ) -> None:
        super().__init__()
        sizes = [math.prod(inputs), *widths]
        hidden: list[nn.Module] = []
        for before, after in itertools.pairwise(sizes):
            hidden += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(dropout)]
        self.hidden = nn.Sequential(*hidden)
        self.head = nn.Linear(sizes[-1], outputs)
        if init == "niid":
            _init_niid(self)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.hidden(x.flatten(1)))
        return out


def _init_niid(model: nn.Module) -> None:
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.1)
            nn.init.constant_(layer.bias, 0.1)
