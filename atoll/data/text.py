"""Text as numbers: words or characters, a vocabulary from the training part, rows of one length, windows.

>>> corpus = Corpus.read(["The cat sat.", "the dog"])
>>> vocabulary = Vocabulary.most_common(corpus, np.array([True, False]), 6)
>>> vocabulary.tokens
('.', 'cat', 'sat', 'the')
>>> vocabulary.padded(corpus, 4).tolist()
[[5, 3, 4, 2], [5, 1, 0, 0]]
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.errors import DataError

Ints = NDArray[Any]

PAD, UNKNOWN = 0, 1  # no token; a token that the vocabulary does not have

_WORDS = re.compile(r"[a-z0-9]+(?:'[a-z]+)?|[^\sa-z0-9]")


def split_words(text: str) -> list[str]:
    """Lower-case words and numbers, contractions whole, every other mark by itself.

    >>> split_words("It's 10 o'clock!")
    ["it's", '10', "o'clock", '!']
    """
    return _WORDS.findall(text.lower())


@dataclass(frozen=True, eq=False)
class Corpus:
    """Texts as runs of word numbers, before a vocabulary is chosen: text i is flat[offsets[i] : offsets[i + 1]]."""

    flat: Ints
    offsets: Ints
    tokens: list[str]  # the word of each number, in the order in which they were met

    @classmethod
    def read(cls, texts: Iterable[str], split: Callable[[str], list[str]] = split_words) -> Corpus:
        """Cut every text into tokens."""
        numbers: dict[str, int] = {}
        flat, offsets = array("i"), array("q", [0])
        for text in texts:
            flat.extend([numbers.setdefault(token, len(numbers)) for token in split(text)])
            offsets.append(len(flat))
        return cls(np.frombuffer(flat, np.intc), np.frombuffer(offsets, np.int64), list(numbers))

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)


@dataclass(frozen=True)
class Vocabulary:
    """Tokens 2, 3, ... in alphabetical order; 0 is padding and 1 stands for anything else."""

    tokens: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.tokens) + 2

    @classmethod
    def most_common(cls, corpus: Corpus, training: NDArray[np.bool_], size: int) -> Vocabulary:
        """The tokens that occur most often in the training texts, at most `size` with padding and unknown."""
        if size < 3:
            raise DataError(f"vocabulary: must be 3 or more (got {size}): padding, the unknown, and one token.")
        seen = corpus.flat[np.repeat(training, corpus.lengths)]
        counts = np.bincount(seen, minlength=len(corpus.tokens))
        ranked = sorted(np.flatnonzero(counts).tolist(), key=lambda i: (-counts[i], corpus.tokens[i]))
        return cls(tuple(sorted(corpus.tokens[i] for i in ranked[: size - 2])))

    def encoded(self, corpus: Corpus) -> Ints:
        """The corpus in the numbers of this vocabulary, one long run."""
        number = {token: i + 2 for i, token in enumerate(self.tokens)}
        own = np.array([number.get(token, UNKNOWN) for token in corpus.tokens], smallest(len(self)))
        return own[corpus.flat] if len(own) else np.empty(0, smallest(len(self)))

    def padded(self, corpus: Corpus, length: int) -> Ints:
        """One row for each text: its first `length` tokens, then padding."""
        flat, lengths = self.encoded(corpus), np.minimum(corpus.lengths, length)
        out = np.full((len(lengths), length), PAD, flat.dtype)
        filled = np.arange(length) < lengths[:, None]
        at = (corpus.offsets[:-1, None] + np.arange(length))[filled]
        out[filled] = flat[at]
        return out


def characters(text: str) -> Ints:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


@dataclass(frozen=True)
class Alphabet:
    """Characters 1, 2, ... in the order of their code points; 0 is padding and stands for anything else."""

    characters: str

    def __len__(self) -> int:
        return len(self.characters) + 1

    @classmethod
    def most_common(cls, points: Ints, size: int | None = None) -> Alphabet:
        """The characters that occur most often, at most `size` with the unknown; all of them unless told."""
        points_used, counts = np.unique(points, return_counts=True)
        ranked = np.lexsort((points_used, -counts))[: None if size is None else size - 1]
        return cls("".join(chr(c) for c in np.sort(points_used[ranked])))

    def encoded(self, points: Ints) -> Ints:
        """Code points in the numbers of this alphabet."""
        own_points = characters(self.characters)
        if not len(own_points):
            return np.zeros(len(points), smallest(len(self)))
        at = np.minimum(np.searchsorted(own_points, points), len(own_points) - 1)
        return np.where(own_points[at] == points, at + 1, 0).astype(smallest(len(self)))


def smallest(size: int) -> type[np.int8] | type[np.int16] | type[np.int32]:
    """The smallest signed type that can hold the numbers up to `size`, which a comparison with it needs as well."""
    return np.int8 if size < 2**7 else np.int16 if size < 2**15 else np.int32
