"""Algorithms, one file each: seven hooks, written for one client."""

from collections.abc import Callable
from typing import Any

from atoll.algorithms.adafedprox import AdaFedProx
from atoll.algorithms.afl import AgnosticFL
from atoll.algorithms.apfl import APFL
from atoll.algorithms.centralised import Centralised
from atoll.algorithms.ditto import Ditto
from atoll.algorithms.fedavg import FedAvg
from atoll.algorithms.feddf import FedDF
from atoll.algorithms.feddyn import FedDyn
from atoll.algorithms.fedgan import FedGAN
from atoll.algorithms.fedgkt import FedGKT
from atoll.algorithms.fedmd import FedMD
from atoll.algorithms.fednas import FedNAS
from atoll.algorithms.fednova import FedNova
from atoll.algorithms.fedopt import fedadagrad, fedadam, fedavgm, fedyogi
from atoll.algorithms.fedpac_lite import FedPACLite
from atoll.algorithms.fedprox import FedProx
from atoll.algorithms.fedrep import FedRep
from atoll.algorithms.fedsgd import FedSGD
from atoll.algorithms.heterofl import HeteroFL
from atoll.algorithms.local import model_of
from atoll.algorithms.local_only import LocalOnly
from atoll.algorithms.mimelite import MimeLite
from atoll.algorithms.model_losses import ModelLosses
from atoll.algorithms.moon import Moon
from atoll.algorithms.optimizers import OPTIMIZERS, Optimizer, sgd
from atoll.algorithms.partial_sharing import fedbn, fedper
from atoll.algorithms.per_fedavg import PerFedAvg
from atoll.algorithms.pfedme import PFedMe
from atoll.algorithms.pseudo_labels import PseudoLabels
from atoll.algorithms.published import scaffold
from atoll.algorithms.qffl import QFedAvg
from atoll.algorithms.reptile import reptile
from atoll.algorithms.scaffold import Scaffold
from atoll.algorithms.wrappers import LocalStatistics, Snapshot, Statistics, keep_statistics_local

ALGORITHMS: dict[str, Callable[..., Any]] = {
    "fedsgd": FedSGD,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "adafedprox": AdaFedProx,
    "scaffold": scaffold,
    "fednova": FedNova,
    "fedavgm": fedavgm,
    "fedadagrad": fedadagrad,
    "fedadam": fedadam,
    "fedyogi": fedyogi,
    "mimelite": MimeLite,
    "feddyn": FedDyn,
    "moon": Moon,
    "qffl": QFedAvg,
    "afl": AgnosticFL,
    "reptile": reptile,
    "per_fedavg": PerFedAvg,
    "ditto": Ditto,
    "apfl": APFL,
    "pfedme": PFedMe,
    "fedper": fedper,
    "fedrep": FedRep,
    "fedpac_lite": FedPACLite,
    "fedbn": fedbn,
    "heterofl": HeteroFL,
    "feddf": FedDF,
    "fedmd": FedMD,
    "fedgkt": FedGKT,
    "fednas": FedNAS,
    "fedgan": FedGAN,
    "pseudo_labels": PseudoLabels,
    "local": LocalOnly,
    "centralised": Centralised,
}

__all__ = [
    "ALGORITHMS",
    "APFL",
    "OPTIMIZERS",
    "AdaFedProx",
    "AgnosticFL",
    "Centralised",
    "Ditto",
    "FedAvg",
    "FedDF",
    "FedDyn",
    "FedGAN",
    "FedGKT",
    "FedMD",
    "FedNAS",
    "FedNova",
    "FedPACLite",
    "FedProx",
    "FedRep",
    "FedSGD",
    "HeteroFL",
    "LocalOnly",
    "LocalStatistics",
    "MimeLite",
    "ModelLosses",
    "Moon",
    "Optimizer",
    "PFedMe",
    "PerFedAvg",
    "PseudoLabels",
    "QFedAvg",
    "Scaffold",
    "Snapshot",
    "Statistics",
    "fedadagrad",
    "fedadam",
    "fedavgm",
    "fedbn",
    "fedper",
    "fedyogi",
    "keep_statistics_local",
    "model_of",
    "reptile",
    "scaffold",
    "sgd",
]
