"""What is claimed of every registered algorithm, beyond the contract: options for `check_algorithm`."""

from typing import Any

# exact: reaches the true optimum of clients that disagree. alone: with one client it is plain SGD.
CLAIMS: dict[str, dict[str, Any]] = {
    "fedsgd": {"exact": True, "sampled": False, "alone": False, "rounds": 80},
    "fedavg": {"exact": False, "alone": True},
    "fedprox": {"exact": False, "alone": False, "mu": 0.1},
    "adafedprox": {"exact": False, "alone": True},
    "scaffold": {"exact": True, "alone": True, "control": "control"},
    "fednova": {"exact": False, "alone": True},
    "fedavgm": {"exact": False, "alone": False},
    "fedadagrad": {"exact": False, "alone": False},
    "fedadam": {"exact": False, "alone": False},
    "fedyogi": {"exact": False, "alone": False},
    "feddyn": {"exact": True, "alone": False, "control": "h", "alpha": 1.0},
    "moon": {"exact": False, "alone": True},
    "qffl": {"exact": False, "alone": False},
    "afl": {"exact": False, "alone": True},
    "reptile": {"exact": False, "alone": False},
    "mimelite": {"exact": False, "alone": False},
    "per_fedavg": {"exact": False, "alone": False},
    "apfl": {"exact": False, "alone": True},
    "pfedme": {"exact": False, "alone": False, "inner_steps": 2},
    "fedrep": {"exact": False, "alone": False},
    "fedpac_lite": {"exact": False, "alone": False},
    "ditto": {"exact": False, "alone": True},
    "fedper": {"exact": False, "alone": False},
    "fedbn": {"exact": False, "alone": False},
    "heterofl": {"exact": False, "alone": True},
    "feddf": {"match": "scores", "distil_lr": 0.02},
    "fedmd": {"match": "scores", "digest_lr": 0.02},
    "fednas": {"architecture": ("head", "4.bias"), "arch_lr": 0.0},
    "fedgkt": {},  # on a model with an extractor and a tower only
    "fedgan": {},  # on a model with a generator only
    "pseudo_labels": {"labelled": 1.0, "exact": False, "alone": True},
    "local": {"exact": False, "alone": False},
    "centralised": {"exact": False, "alone": True},
}
