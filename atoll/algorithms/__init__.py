"""Algorithms, one file each: seven hooks, written for one client."""

from collections.abc import Callable
from typing import Any

from atoll.algorithms.adafedprox import AdaFedProx
from atoll.algorithms.centralised import Centralised
from atoll.algorithms.ditto import Ditto
from atoll.algorithms.fedadagrad import FedAdagrad
from atoll.algorithms.fedadam import FedAdam
from atoll.algorithms.fedavg import FedAvg
from atoll.algorithms.fedavgm import FedAvgM
from atoll.algorithms.fedbn import FedBN
from atoll.algorithms.feddyn import FedDyn
from atoll.algorithms.fednova import FedNova
from atoll.algorithms.fedper import FedPer
from atoll.algorithms.fedprox import FedProx
from atoll.algorithms.fedsgd import FedSGD
from atoll.algorithms.fedyogi import FedYogi
from atoll.algorithms.local_only import LocalOnly
from atoll.algorithms.moon import Moon
from atoll.algorithms.optimizers import OPTIMIZERS
from atoll.algorithms.reptile import Reptile
from atoll.algorithms.scaffold import Scaffold

ALGORITHMS: dict[str, Callable[..., Any]] = {
    "fedsgd": FedSGD,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "adafedprox": AdaFedProx,
    "scaffold": Scaffold,
    "fednova": FedNova,
    "fedavgm": FedAvgM,
    "fedadagrad": FedAdagrad,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "feddyn": FedDyn,
    "moon": Moon,
    "reptile": Reptile,
    "ditto": Ditto,
    "fedper": FedPer,
    "fedbn": FedBN,
    "local": LocalOnly,
    "centralised": Centralised,
}

__all__ = ["ALGORITHMS", "OPTIMIZERS"]
