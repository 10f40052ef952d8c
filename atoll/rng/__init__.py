"""Keyed random numbers: the same key gives the same draw on any engine, chunking, device or number of machines.

A key is an int64 tensor of shape (2,), so it stacks and vmaps like data. Nothing here keeps state: two draws from one
key are the same draw, so `fold` a new key for each purpose.

The generator is Threefry-2x32 with 20 rounds (Salmon et al., Parallel random numbers: as easy as 1, 2, 3; 2011).

>>> uniform(key(0, "round", 3), (2,))
tensor([0.1667, 0.0124])

`host` has the same numbers made with numpy, for millions at a time; `dp` has the draws that privacy rests on, which a
GPU makes in one kernel; `ahead` makes them for many rounds in one call.
"""

from atoll.rng import ahead, dp, host
from atoll.rng.draws import (
    BitSource,
    bernoulli,
    bits,
    choice,
    dirichlet,
    distinct,
    log_gamma,
    normal,
    normal_dp,
    permutation,
    quick_bits,
    quick_normal,
    quick_uniform,
    quick_words,
    uniform,
)
from atoll.rng.keys import fold, fold_each, fold_host, fold_name, fold_name_each, is_batched, key, threefry

__all__ = [
    "BitSource",
    "ahead",
    "bernoulli",
    "bits",
    "choice",
    "dirichlet",
    "distinct",
    "dp",
    "fold",
    "fold_each",
    "fold_host",
    "fold_name",
    "fold_name_each",
    "host",
    "is_batched",
    "key",
    "log_gamma",
    "normal",
    "normal_dp",
    "permutation",
    "quick_bits",
    "quick_normal",
    "quick_uniform",
    "quick_words",
    "threefry",
    "uniform",
]
