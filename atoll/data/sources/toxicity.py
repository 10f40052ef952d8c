"""Toxic comments, by annotator."""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from atoll.data.dataset import Dataset
from atoll.data.fetch import Download, Files, Offer, ParsedColumns, Recipe, parsed_columns
from atoll.data.sources.adult import AIF360, AIF360_FILE, AIF360_SHA256
from atoll.data.sources.decoders import Bag, Tokens
from atoll.data.sources.fixed_split import TEST, TRAIN, VALIDATION, rows_of
from atoll.data.sources.sentiment import Length, Size, tokens
from atoll.errors import DataError

_COMMENTS, _LABELS = "toxicity_annotated_comments.tsv", "toxicity_annotations.tsv"

TOXICITY = Recipe(
    "toxicity",
    (Offer((Download(AIF360_FILE, AIF360_SHA256, 56.5, AIF360, "aif360/data/raw/toxicity/"),), (_COMMENTS, _LABELS)),),
    "CC0 (the labels), CC BY-SA 3.0 (the comments, Wikipedia)",
    "Wulczyn, Thain, Dixon: Ex machina: personal attacks seen at scale. WWW 2017 (Wikipedia Talk Labels: Toxicity).",
    "https://doi.org/10.6084/m9.figshare.4563973",
    clients="4,301 annotators",
)
_PARTS = {"train": TRAIN, "test": TEST, "dev": VALIDATION}


def toxicity(
    features: Literal["tokens", "bag"] = "tokens",
    vocabulary: Size = 10_000,
    length: Length = 64,
    folder: str | None = None,
) -> Dataset:
    """Toxic comments of Wikipedia talk pages: 1,598,289 judgements of 159,686 comments, by "annotator" (4,301).

    An example is one annotator's judgement (toxic or not) of one comment, so the same comment may be with several
    clients under different labels. The split by comment is the source's own (train, test; dev is the validation part).
    `features = "tokens"`: the first `length` words as numbers in a vocabulary of the training comments; "bag": how
    often each word of the vocabulary occurs in them.
    """
    cached = parsed_columns(TOXICITY, parse, folder, vocabulary=vocabulary, length=length)
    size = len(cached.notes["vocabulary"]) + 2
    comment, part = cached["comment"].long(), cached.arrays["part"][cached.arrays["comment"]]
    of = [rows_of(part, which) for which in (TRAIN, TEST, VALIDATION)]
    train, test, validation = ({"x": cached["x"][comment[r]], "y": cached["y"][r].long()} for r in of)
    clients = {"annotator": torch.unique(cached["annotator"][of[0]], return_inverse=True)[1]}
    width, decode, words = (length, Tokens(), size) if features == "tokens" else (size, Bag(size), None)
    data = Dataset("toxicity", "classification", train, test, (width,), 2, decode, clients, fitted="vocabulary")
    return replace(data, validation=validation, vocabulary=words, classes=("fine", "toxic")).check()


def parse(files: Files, vocabulary: int, length: int) -> ParsedColumns:
    """The comments as rows of tokens, and the judgements as (comment, annotator, toxic)."""
    raw = files.every()
    lines = [line.split("\t") for line in raw[_COMMENTS].decode().split("\n")[1:] if line]
    if any(len(line) != 7 for line in lines):
        raise DataError(f"toxicity: {_COMMENTS} is not a table of seven columns. Fetch it again.")
    number = {line[0]: i for i, line in enumerate(lines)}
    part = np.array([_PARTS[line[6].strip()] for line in lines], np.uint8)
    texts = [line[1].replace("NEWLINE_TOKEN", " ").replace("TAB_TOKEN", " ") for line in lines]
    tokenised = tokens(texts, part, vocabulary, length)
    labels = [line.split("\t") for line in raw[_LABELS].decode().split("\n")[1:] if line]
    arrays: dict[str, NDArray[Any]] = {
        "comment": np.array([number[line[0]] for line in labels], np.int32),
        "annotator": np.array([int(line[1]) for line in labels], np.int16),
        "y": np.array([int(line[2]) for line in labels], np.uint8),
    }
    return ParsedColumns({**tokenised.arrays, **arrays}, tokenised.notes)
