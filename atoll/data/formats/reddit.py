"""Reddit comments, as LEAF writes them."""

from dataclasses import replace
from pathlib import Path
from types import UnionType
from typing import Any

import numpy as np

from atoll.data.dataset import IGNORE, Dataset
from atoll.data.formats import safe_read
from atoll.data.formats.leaf_json import Array, LeafExamples, leaf_dataset, read_leaf
from atoll.data.formats.split import Share
from atoll.data.formats.tokenise import Vocabulary, Words, compact
from atoll.data.sources import Tokens
from atoll.tree import Tree

_LENGTH = 10  # tokens in each of LEAF's sequences
_PADDING = "<PAD>"


def reddit(
    path: Path, vocabulary: Vocabulary = 10_000, words: Path | None = None, test_share: Share = 0.1, seed: int = 0
) -> Dataset:
    """Reddit in LEAF's JSON: the next word of comments, in sequences of 10; natural clients by "user".

    `path` holds train/ and test/ with LEAF's files (val/ is not read), or is one file. Token 0 is padding, 1 an
    unknown word, then the words of the training part by frequency, `vocabulary` in all, as LEAF's build_vocab.py has
    them; or those of the file `words`, one on each line (LEAF's own reddit_vocab.pck is a pickle and is not read).
    Padding is no target, also not behind the end of a comment, where LEAF counts it as one. Caldas et al. (2018),
    https://arxiv.org/abs/1812.01097.
    """
    all_words = Words(_PADDING)

    def convert(x: list[Any], y: list[Any], where: str) -> tuple[Array, Array]:
        inputs, targets, real = _sequences(x, y, where)
        lengths = {len(sequence) for column in (inputs, targets, real) for sequence in column}
        if not len(inputs) == len(targets) == len(real) or lengths - {_LENGTH}:
            safe_read.refuse(where, f"has sequences that are not {_LENGTH} tokens long, or too few", "Use LEAF's files")
        return all_words.rows(inputs, _LENGTH), np.where(np.array(real) > 0, all_words.rows(targets, _LENGTH), 0)

    parts = read_leaf(path, convert, test_share, seed, counted=False)
    final, size = all_words.settle(parts[0].x, vocabulary, listed=words)

    def columns(part: LeafExamples) -> Tree:
        return {"x": compact(final[part.x], size), "y": compact(np.where(part.y > 0, final[part.y], IGNORE), size)}

    dataset = leaf_dataset("reddit", "next_token", parts, columns, size, Tokens(), size)
    return replace(dataset, fitted="" if words else "vocabulary")


def _sequences(x: list[Any], y: list[Any], where: str) -> tuple[list[list[str]], list[list[str]], list[list[float]]]:
    """Of all comments the inputs, the targets, and which of these are words."""
    try:
        inputs = [sequence for comment in x for sequence in comment]
        targets = [sequence for comment in y for sequence in comment["target_tokens"]]
        real = [sequence for comment in y for sequence in comment["count_tokens"]]
    except (TypeError, KeyError):
        safe_read.refuse(where, "a comment is not sequences with target_tokens and count_tokens", "Use LEAF's files")
    if not all(_all_are(str, s) for s in [*inputs, *targets]) or not all(_all_are(int | float, s) for s in real):
        safe_read.refuse(where, "a sequence is no list of tokens, or count_tokens none of numbers", "Use LEAF's files")
    return inputs, targets, real


def _all_are(kind: type | UnionType, sequence: Any) -> bool:
    return isinstance(sequence, list) and all(isinstance(token, kind) for token in sequence)
