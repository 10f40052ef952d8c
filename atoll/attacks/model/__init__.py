"""Attacks on the model: what clients that mean harm train on, and what they send."""

from collections.abc import Callable
from typing import Any

from atoll.attacks.model.alie import Alie, AlieSearch
from atoll.attacks.model.backdoor import Backdoor, DistributedBackdoor, Neurotoxin
from atoll.attacks.model.edge_case import EdgeCase
from atoll.attacks.model.fang import FangKrum, FangSearch, FangTrimmedMean
from atoll.attacks.model.free_rider import FreeRider
from atoll.attacks.model.inner_product import InnerProduct, InnerProductSearch
from atoll.attacks.model.label_flip import LabelFlip, LabelSwap
from atoll.attacks.model.mimic import Mimic
from atoll.attacks.model.min_distance import MinMax, MinSum
from atoll.attacks.model.naive import RandomUpdate, SameValue, ScaledUpdate, SignFlip, ZeroUpdate

ATTACKS: dict[str, Callable[..., Any]] = {
    "zero": ZeroUpdate,
    "random": RandomUpdate,
    "sign_flip": SignFlip,
    "scaled": ScaledUpdate,
    "same_value": SameValue,
    "free_rider": FreeRider,
    "label_flip": LabelFlip,
    "ipm": InnerProduct,
    "ipm_search": InnerProductSearch,
    "alie": Alie,
    "alie_search": AlieSearch,
    "min_max": MinMax,
    "min_sum": MinSum,
    "fang_trimmed_mean": FangTrimmedMean,
    "fang_krum": FangKrum,
    "fang_search": FangSearch,
    "mimic": Mimic,
    "backdoor": Backdoor,
    "distributed_backdoor": DistributedBackdoor,
    "edge_case": EdgeCase,
    "neurotoxin": Neurotoxin,
    "label_swap": LabelSwap,
}

__all__ = [
    "ATTACKS",
    "Alie",
    "AlieSearch",
    "Backdoor",
    "DistributedBackdoor",
    "EdgeCase",
    "FangKrum",
    "FangSearch",
    "FangTrimmedMean",
    "FreeRider",
    "InnerProduct",
    "InnerProductSearch",
    "LabelFlip",
    "LabelSwap",
    "Mimic",
    "MinMax",
    "MinSum",
    "Neurotoxin",
    "RandomUpdate",
    "SameValue",
    "ScaledUpdate",
    "SignFlip",
    "ZeroUpdate",
]
