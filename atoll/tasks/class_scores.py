"""The last layer of a language model, whose scores are not written down where only a loss would read them."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from atoll.tasks.kernels import LinearScores, takes_linear_scores
from atoll.tasks.keyed_dropout import is_scored
from atoll.tasks.sequential import is_plain


def class_scores(model: nn.Module, x: Tensor, layer: nn.Embedding | nn.Linear) -> Tensor | LinearScores:
    """The outputs of `model`, made by its linear layer or by its embedding, which is tied to it.

    One that somebody hooked is called as ever.
    """
    if is_scored(model) and _may_be_cut(model, layer) and takes_linear_scores(x, layer.weight):
        return LinearScores(x, layer.weight)
    scores: Tensor = F.linear(x, layer.weight) if isinstance(layer, nn.Embedding) else layer(x)
    return scores


def _may_be_cut(model: nn.Module, layer: nn.Embedding | nn.Linear) -> bool:
    unbiased = type(layer) is nn.Embedding or (type(layer) is nn.Linear and layer.bias is None)
    return unbiased and is_plain(layer) and is_plain(model)
