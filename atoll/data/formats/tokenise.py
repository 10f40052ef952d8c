"""Words as numbers: 0 is padding, 1 a word that is not known, then the words of the training rows by frequency."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from atoll.data.formats import safe_read
from atoll.data.text import PAD, UNKNOWN, smallest

Ints = NDArray[np.int32]
Vocabulary = Annotated[int, Field(ge=3, description="its size, with padding and the unknown word")]


class Words:
    """Every word that was read, numbered as it came; in the end `settle` makes a vocabulary of the frequent ones.

    >>> words = Words()
    >>> rows = words.rows([["to", "be", "or"], ["be"]], 2)
    >>> final, size = words.settle(rows, 4)
    >>> rows.tolist(), final[rows].tolist(), size
    ([[1, 2], [2, 0]], [[3, 2], [2, 0]], 4)
    """

    def __init__(self, padding: str | None = None) -> None:
        self._numbers: defaultdict[str, int] = defaultdict(lambda: len(self._numbers) + 1)
        if padding is not None:
            self._numbers[padding] = 0

    def rows(self, texts: Iterable[Sequence[str]], length: int) -> Ints:
        """The first `length` words of each text, padded with 0."""
        number = self._numbers
        numbered = [[number[w] for w in text[:length]] for text in texts]
        out = np.zeros((len(numbered), length), np.int32)
        for i, row in enumerate(numbered):
            out[i, : len(row)] = row
        return out

    def settle(
        self, train: Ints, size: int, special: Sequence[str] = (), listed: Path | None = None
    ) -> tuple[Ints, int]:
        """What each number becomes, and the size of the vocabulary: at most `size`.

        `special` words come first; those of a file, if it is given, in place of those that were counted.
        """
        counts = np.bincount(train.reshape(-1), minlength=len(self._numbers) + 1)
        if listed is None:
            seen = [w for w, i in self._numbers.items() if i and counts[i] and w not in special]
            vocabulary = sorted(seen, key=lambda w: (-counts[self._numbers[w]], w))
        else:
            vocabulary = [w for w in read_words(listed) if w not in special]
        vocabulary = [*special, *vocabulary][: size - 2]
        final = np.full(len(self._numbers) + 1, UNKNOWN, np.int32)
        final[0] = PAD
        for place, word in enumerate(vocabulary, 2):
            if word in self._numbers:
                final[self._numbers[word]] = place
        return final, 2 + len(vocabulary)


def read_words(path: Path) -> list[str]:
    """The words of a file, one on each line; what follows a word on its line (a count) is not read."""
    words = [
        line.split()[0] for _, line in safe_read.numbered_lines(safe_read.existing_file(path, "words")) if line.strip()
    ]
    if len(set(words)) < len(words):
        twice = next(w for i, w in enumerate(words) if w in words[:i])
        safe_read.refuse(path, f"lists {twice!r} twice", "List each word once")
    return words


def compact(numbers: NDArray[np.integer], size: int) -> Tensor:
    """Tokens below `size` (and targets that are none, -100) in as few bits as they need."""
    return torch.from_numpy(numbers.astype(smallest(size)))
