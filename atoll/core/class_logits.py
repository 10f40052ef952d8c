"""What a model puts out, as one logit for each class."""

import torch
from torch import Tensor


def is_one_logit(out: Tensor) -> bool:
    """One number for each example: of two classes, the logit of the second."""
    return out.shape[1:].numel() == 1


def class_logits(out: Tensor) -> Tensor:
    """(B, classes): softmax of (0, z) is (1 - sigmoid(z), sigmoid(z)).

    >>> class_logits(torch.tensor([[2.0], [-1.0]])).tolist()
    [[0.0, 2.0], [0.0, -1.0]]
    """
    if not is_one_logit(out):
        return out
    second = out.reshape(len(out), 1)
    return torch.cat([torch.zeros_like(second), second], 1)
