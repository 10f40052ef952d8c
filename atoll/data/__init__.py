"""Data sets, partitions into clients, and the sampling of cohorts: examples, who holds them, and who takes part."""

from collections.abc import Callable
from typing import Any

from atoll.data.arrays import InputKind
from atoll.data.availability import Available, available
from atoll.data.dataset import Dataset
from atoll.data.decode import Fields, Pixels, Same
from atoll.data.formats import FILES, Preprocessing, columns_of, fitted_table
from atoll.data.measures import Skew, label_counts, label_skew
from atoll.data.memory import gib, machine_memory
from atoll.data.model_inputs import ModelInputs
from atoll.data.partition import PARTITIONS, Partition, Partitioner, make_clients, noisy
from atoll.data.population import Population
from atoll.data.sampling import (
    Cyclic,
    CyclicPoisson,
    Everyone,
    Fixed,
    FixedWithReplacement,
    Fraction,
    Poisson,
    Sampler,
)
from atoll.data.sources import PACKAGED, breast_cancer, diabetes, digits, fcube, library_text, synthetic

# Always here: in a dependency, or made.
EMBEDDED: dict[str, Callable[..., Dataset]] = {
    "digits": digits,
    "breast_cancer": breast_cancer,
    "diabetes": diabetes,
    "synthetic": synthetic,
    "fcube": fcube,
    "library_text": library_text,
}

DATA: dict[str, Callable[..., Dataset]] = {**EMBEDDED, **PACKAGED, **FILES}

SAMPLERS: dict[str, Callable[..., Any]] = {
    "everyone": Everyone,
    "fixed": Fixed,
    "fixed_with_replacement": FixedWithReplacement,
    "fraction": Fraction,
    "poisson": Poisson,
    "cyclic": Cyclic,
    "cyclic_poisson": CyclicPoisson,
    "available": available,
}

__all__ = [
    "DATA",
    "EMBEDDED",
    "PARTITIONS",
    "SAMPLERS",
    "Available",
    "Cyclic",
    "CyclicPoisson",
    "Dataset",
    "Everyone",
    "Fields",
    "Fixed",
    "FixedWithReplacement",
    "Fraction",
    "InputKind",
    "ModelInputs",
    "Partition",
    "Partitioner",
    "Pixels",
    "Poisson",
    "Population",
    "Preprocessing",
    "Same",
    "Sampler",
    "Skew",
    "available",
    "columns_of",
    "fitted_table",
    "gib",
    "label_counts",
    "label_skew",
    "machine_memory",
    "make_clients",
    "noisy",
]
