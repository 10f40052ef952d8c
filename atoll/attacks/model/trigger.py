"""Triggers: pixels that a backdoored model takes for a class."""

from __future__ import annotations

import torch
from torch import Tensor

from atoll.core import Examples, Poison
from atoll.errors import ConfigError
from atoll.tree import Tree


def square(shape: torch.Size, size: int) -> Tensor:
    """Where a square of `size` pixels in the lower right corner lies, one pixel from the edge; of a vector its last.

    >>> square(torch.Size([1, 4, 4]), 2).long()[0].tolist()
    [[0, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    """
    mask = torch.zeros(shape, dtype=torch.bool)
    edge = 1 if len(shape) > 1 else 0
    _check_room(shape, size + edge, size + edge)
    place = slice(-size - edge, -edge or None)
    mask[(..., place, place) if len(shape) > 1 else (..., place)] = True
    return mask


def bars(shape: torch.Size, size: int, parts: int) -> Tensor:
    """A trigger in `parts`, (parts, *shape): bars of `size` pixels, two beside each other, from the upper left corner.

    >>> bars(torch.Size([1, 3, 5]), 2, 4).long().sum(0)[0].tolist()
    [[1, 1, 0, 1, 1], [0, 0, 0, 0, 0], [1, 1, 0, 1, 1]]
    """
    mask = torch.zeros((parts, *shape), dtype=torch.bool)
    if len(shape) == 1:
        _check_room(shape, 1, size * parts)
    else:
        _check_room(shape, 2 * ((parts + 1) // 2) - 1, 2 * size + 1 if parts > 1 else size)
    for part in range(parts):
        row, column = (0, part * size) if len(shape) == 1 else (2 * (part // 2), (part % 2) * (size + 1))
        place = slice(column, column + size)
        mask[(part, ..., row, place) if len(shape) > 1 else (part, place)] = True
    return mask


def _check_room(shape: torch.Size, height: int, width: int) -> None:
    fits = width <= shape[-1] and (len(shape) == 1 or height <= shape[-2])
    if not fits:
        what = " x ".join(map(str, shape))
        raise ConfigError(f"attack.size: the trigger needs {height} x {width} numbers; inputs are {what}. Use less.")


def stamped(examples: Examples, places: Tensor, mask: Tensor, target: int) -> Poison:
    """These rows with white where the mask says, of class `target`; `mask` is one for all, or one for each row."""
    check_inputs(examples.columns["x"])
    columns: Tree = {name: column[places] for name, column in examples.columns.items()}
    x, y = columns["x"], columns["y"]
    white = torch.full((), examples.high).to(x.dtype)
    return Poison(places, {**columns, "x": torch.where(mask, white, x), "y": torch.full_like(y, target)})


def check_inputs(x: object) -> None:
    """A trigger is drawn on numbers: words and several inputs have none."""
    if not isinstance(x, Tensor) or x.dtype == torch.int64:
        raise ConfigError(
            "attack.name: draws a trigger on pixels or features, and these inputs are words or several. Use label_flip "
            "or label_swap."
        )
