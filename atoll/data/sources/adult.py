"""Adult, in the 123 binary features of LibSVM's a9a."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.data.dataset import Dataset
from atoll.data.fetch import Download, Files, Offer, Package, ParsedColumns, Recipe, parsed_columns
from atoll.data.sources.decoders import Floats
from atoll.data.sources.fixed_split import published_split
from atoll.errors import DataError

_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
_DATA = "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"
_TEST = "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"
AIF360 = Package("pip", "aif360==0.3.0rc0")
AIF360_FILE = "aif360-0.3.0rc0-py3-none-any.whl"
AIF360_SHA256 = "0db86e749bd8c6814023663cae76e1d7826a4596d1228cdaa758df3b0dccfd0a"

_FILES = ("adult.data", "adult.test")
_PUBLISHED = (
    Download("adult.data", _DATA, 4.0, _UCI + "adult.data"),
    Download("adult.test", _TEST, 2.1, _UCI + "adult.test"),
)
_CARRIED = Download(AIF360_FILE, AIF360_SHA256, 56.5, AIF360, "aif360/data/raw/adult/")
ADULT = Recipe(
    "adult",
    (Offer(_PUBLISHED, _FILES), Offer((_CARRIED,), _FILES)),
    "CC BY 4.0 (UCI Machine Learning Repository)",
    "Becker, Kohavi: Adult. UCI Machine Learning Repository, 1996; as a9a: Chang, Lin: LIBSVM, ACM TIST 2011.",
    "https://archive.ics.uci.edu/dataset/2/adult",
)

# The categories in the order of adult.names, which is that of a9a's columns; None: cut at the training quintiles; 0: is
# it above 0?
_COLUMNS: tuple[str | int | None, ...] = (
    None,  # age
    "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked",
    None,  # fnlwgt
    "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters 1st-4th 10th "
    "Doctorate 5th-6th Preschool",
    None,  # education-num
    "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse",
    "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners Machine-op-inspct "
    "Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv Armed-Forces",
    "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "Female Male",
    0,  # capital-gain
    0,  # capital-loss
    None,  # hours-per-week
    "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India Japan Greece South "
    "China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland France "
    "Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia "
    "El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands",
)
_BINS = 5


def adult(folder: str | None = None) -> Dataset:
    """Adult (a9a): does a person earn more than 50,000 dollars? 123 binary features; 32,561 train, 16,281 test.

    Encoded as LibSVM's a9a: each category is a column, age, fnlwgt, education-num and hours-per-week are cut at the
    training quintiles (5 columns each), capital gain and loss become "none" and "some"; an unknown value leaves its
    columns at 0.
    """
    cached = parsed_columns(ADULT, parse, folder)
    train, test = published_split(cached)
    classes = ("at most 50K", "more than 50K")
    return Dataset(
        "adult", "classification", train, test, (123,), 2, Floats(), classes=classes, fitted="quintiles"
    ).check()


def parse(files: Files) -> ParsedColumns:
    """Both files as 0/1 columns; cuts come from the training file alone."""
    train, test = (read_rows(files.read(name)) for name in _FILES)
    cuts = {c: _quintiles(train[c]) for c, kind in enumerate(_COLUMNS) if kind is None}
    arrays = {"train_x": _binary(train, cuts), "train_y": _label(train)}
    arrays |= {"test_x": _binary(test, cuts), "test_y": _label(test)}
    return ParsedColumns(arrays, {"cuts": {str(c): v for c, v in cuts.items()}})


def read_rows(raw: bytes) -> list[NDArray[np.str_]]:
    """The 15 columns; remarks and empty lines are passed over, the full stop behind a test label is cut off."""
    lines = [line.strip().rstrip(".").split(",") for line in raw.decode().splitlines()]
    rows = [[field.strip() for field in line] for line in lines if len(line) == 15]
    if not rows:
        raise DataError("adult: no rows of 15 columns. Fetch it again.")
    return [np.array(column) for column in zip(*rows, strict=True)]


def _quintiles(column: NDArray[np.str_]) -> list[int]:
    """Four cuts; a value that fills several fifths has a bin of its own, and the next cut is the next value."""
    values = np.sort(column.astype(np.int64))
    different, cuts = np.unique(values), list[int]()
    for k in range(1, _BINS):
        cut = int(values[len(values) * k // _BINS])
        if cuts and cut <= cuts[-1]:
            following = int(np.searchsorted(different, cuts[-1], "right"))
            cut = int(different[min(following, len(different) - 1)])
        cuts.append(cut)
    return cuts


def _binary(rows: list[NDArray[np.str_]], cuts: dict[int, list[int]]) -> NDArray[np.uint8]:
    return np.concatenate([_one_hot(rows[c], kind, cuts.get(c, [])) for c, kind in enumerate(_COLUMNS)], 1)


def _one_hot(column: NDArray[np.str_], kind: str | int | None, cuts: list[int]) -> NDArray[np.uint8]:
    if isinstance(kind, str):
        return _as_bytes(column[:, None] == np.array(kind.split()))
    numbers = column.astype(np.int64)
    if kind is None:
        return _as_bytes(np.searchsorted(cuts, numbers, "right")[:, None] == np.arange(_BINS))
    return _as_bytes((numbers > kind)[:, None] == np.array([False, True]))


def _label(rows: list[NDArray[np.str_]]) -> NDArray[np.uint8]:
    return _as_bytes(rows[14] == ">50K")


def _as_bytes(values: Any) -> NDArray[np.uint8]:
    return np.asarray(values, np.uint8)
