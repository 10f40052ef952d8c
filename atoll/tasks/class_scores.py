"""First and last layer of a language model, where the last may be the first and a loss may be all that reads it."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from atoll.tasks.kernels import LinearScores, takes_linear_scores, takes_tied_embedding, tied_embedding
from atoll.tasks.keyed_dropout import is_scored
from atoll.tasks.sequential import is_plain


def embedded(tokens: Tensor, layer: nn.Embedding) -> tuple[Tensor, Tensor]:
    """Its rows, and its weights for the last layer."""
    changed = layer.padding_idx is not None or layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse
    if type(layer) is nn.Embedding and is_plain(layer) and not changed and takes_tied_embedding(tokens, layer.weight):
        return tied_embedding(tokens, layer.weight)
    return layer(tokens), layer.weight


def class_scores(model: nn.Module, x: Tensor, last: nn.Linear | Tensor) -> Tensor | LinearScores:
    """The outputs of `model`, made by its last layer or by weights; a layer that somebody hooked is called as ever.

    Where a loss alone reads them they are not written down.
    """
    weight = last if isinstance(last, Tensor) else last.weight
    if is_scored(model) and is_plain(model) and _is_product(last) and takes_linear_scores(x, weight):
        return LinearScores(x, weight)
    scores: Tensor = F.linear(x, last) if isinstance(last, Tensor) else last(x)
    return scores


def _is_product(last: nn.Linear | Tensor) -> bool:
    return isinstance(last, Tensor) or (type(last) is nn.Linear and last.bias is None and is_plain(last))
