"""How many clients of a chunk are still at work, step by step."""

import torch
from torch import Tensor


def longest_first(steps: Tensor) -> Tensor:
    """Clients by their number of steps; those with as many in their order.

    >>> longest_first(torch.tensor([1, 3, 3])).tolist(), longest_first(torch.tensor([2, 2])).tolist()
    ([1, 2, 0], [0, 1])
    """
    numbers = steps.numpy()
    if len(numbers) and numbers.min() == numbers.max():
        return torch.arange(len(numbers))
    return torch.argsort(steps, descending=True, stable=True)


def active(steps: Tensor) -> list[int]:
    """How many clients are still at work in each step; `steps` is sorted, longest first.

    >>> active(torch.tensor([3, 2, 2]))
    [3, 3, 1]
    """
    falling = steps.tolist()
    longest = falling[0] if falling else 0
    if not falling or falling[-1] == longest:
        return [len(falling)] * longest
    return [int(x) for x in (steps[None, :] > torch.arange(longest)[:, None]).sum(1)]


def rounded(n: int, full: int) -> int:
    """Up to the next quarter of the chunk.

    >>> rounded(3, 16), rounded(5, 16), rounded(16, 16)
    (4, 8, 16)
    """
    grain = max(1, -(-full // 4))
    return min(full, -(-n // grain) * grain)


def blocks(at_work: list[int], full: int, longest: int = 8) -> list[tuple[int, bool, int]]:
    """The steps as runs of one shape: (width, does somebody in it stand still?, steps).

    A run is cut in pieces of at most `longest` steps, and of few lengths, so that few graphs are captured; where all
    clients take the same few steps, one piece.

    >>> blocks([4] * 5, 4), blocks([4] * 19, 4)
    ([(4, False, 5)], [(4, False, 8), (4, False, 8), (4, False, 2), (4, False, 1)])
    >>> blocks([8, 8, 5, 3], 8)
    [(8, False, 2), (6, True, 1), (4, True, 1)]
    """
    shapes = [(rounded(n, full), rounded(n, full) != n) for n in at_work]
    if len(set(shapes)) == 1 and len(shapes) <= longest:
        return [(*shapes[0], len(shapes))]
    found: list[tuple[int, bool, int]] = []
    at = 0
    while at < len(shapes):
        until = at
        while until < len(shapes) and shapes[until] == shapes[at]:
            until += 1
        while at < until:
            length = min(longest, 1 << ((until - at).bit_length() - 1))
            found.append((*shapes[at], length))
            at += length
    return found
