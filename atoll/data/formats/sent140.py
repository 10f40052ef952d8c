"""Sentiment140, as LEAF writes it."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field

from atoll.data.dataset import Dataset
from atoll.data.formats import safe_read
from atoll.data.formats.leaf_json import Array, LeafExamples, leaf_classes, leaf_dataset, read_leaf
from atoll.data.formats.split import Share
from atoll.data.formats.tokenise import Vocabulary, Words, compact
from atoll.data.sources import Tokens
from atoll.tree import Tree

_WORD = re.compile(r"[\w']+|[.,!?;]")  # LEAF's words: letters, digits and apostrophes, or one mark
_TEXT = 4  # its place in a row: id, date, query, user, text, part


def sent140(
    path: Path,
    length: Annotated[int, Field(ge=1)] = 25,
    vocabulary: Vocabulary = 10_000,
    words: Path | None = None,
    lower: bool = True,
    test_share: Share = 0.1,
    seed: int = 0,
) -> Dataset:
    """Sentiment140 in LEAF's JSON: tweets, negative or positive, as tokens; natural clients by "user".

    `path` holds train/ and test/ with LEAF's files, or is one file. The first `length` words of a tweet are kept
    (LEAF: 25). Token 0 is padding, 1 an unknown word, then the words of the training tweets by frequency,
    `vocabulary` in all; or those of the file `words`, one on each line. LEAF takes GloVe's words and does not lower
    their case. Model: "sentiment_lstm" with the same vocabulary. Go et al. (2009); Caldas et al. (2018),
    https://arxiv.org/abs/1812.01097.
    """
    all_words = Words()

    def convert(x: list[Any], y: list[Any], where: str) -> tuple[Array, Array]:
        if any(not isinstance(row, list) or len(row) <= _TEXT or not isinstance(row[_TEXT], str) for row in x):
            safe_read.refuse(
                where, "a tweet is not [id, date, query, user, text, ...]", "Use the files of LEAF's scripts"
            )
        texts = [row[_TEXT].lower() if lower else row[_TEXT] for row in x]
        return all_words.rows([_WORD.findall(t) for t in texts], length), leaf_classes(y, 2, where)

    parts = read_leaf(path, convert, test_share, seed)
    final, size = all_words.settle(parts[0].x, vocabulary, listed=words)

    def columns(part: LeafExamples) -> Tree:
        return {"x": compact(final[part.x], size), "y": torch.from_numpy(part.y)}

    dataset = leaf_dataset("sent140", "classification", parts, columns, 2, Tokens(), size)
    return replace(dataset, fitted="" if words else "vocabulary")
