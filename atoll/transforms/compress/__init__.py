"""Compressors: sending less than the whole update."""

from atoll.transforms.compress.coding import Entropy
from atoll.transforms.compress.compressor import Compression, Compressor, Packed
from atoll.transforms.compress.largest import entries, placed
from atoll.transforms.compress.layers import MaskLayers
from atoll.transforms.compress.leafwise import Leafwise
from atoll.transforms.compress.low_rank import LowRank
from atoll.transforms.compress.quantise import Drive, HalfPrecision, Qsgd, UniformQuantise
from atoll.transforms.compress.relevance import Relevance
from atoll.transforms.compress.signs import Sign, Ternary
from atoll.transforms.compress.sketch import Sketch
from atoll.transforms.compress.sparse import RandK, TopK, random_places

__all__ = [
    "Compression",
    "Compressor",
    "Drive",
    "Entropy",
    "HalfPrecision",
    "Leafwise",
    "LowRank",
    "MaskLayers",
    "Packed",
    "Qsgd",
    "RandK",
    "Relevance",
    "Sign",
    "Sketch",
    "Ternary",
    "TopK",
    "UniformQuantise",
    "entries",
    "placed",
    "random_places",
]
