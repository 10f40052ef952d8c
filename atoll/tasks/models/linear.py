"""One affine layer: linear regression, or logistic regression under cross-entropy."""

import math

from torch import Tensor, nn

from atoll.tasks.models.shapes import Shape


class Linear(nn.Module):
    """One linear layer on the flattened example, for regression or as a linear classifier.

    y = W x + b, with the example x flattened. NIID-Bench trains it on FCUBE (Li et al., ICDE 2022).
    """

    def __init__(self, inputs: Shape, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.head = nn.Linear(math.prod(inputs), outputs, bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x.flatten(1))
        return out


def logistic(inputs: Shape, outputs: int, bias: bool = True) -> Linear:
    """Multinomial logistic regression: one linear layer whose outputs are the logits of cross-entropy.

    No sigmoid or softmax stands at the end: cross-entropy brings its own, and two of them flatten the gradients.
    LEAF and FedProx (Li et al., MLSys 2020) train it on MNIST and Synthetic(alpha, beta).
    """
    return Linear(inputs, outputs, bias)
