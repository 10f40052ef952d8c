"""Digests of small runs through the public API: what a change of the code must not change, bit for bit.

Made with the code of commit 19607cd, checked out in a folder of its own (about two minutes on one core):

    PYTHONPATH=that_folder OMP_NUM_THREADS=1 python tests/golden/digests.py --out tests/golden/digests.json

Another tree is held to it by

    PYTHONPATH=$PWD OMP_NUM_THREADS=1 python tests/golden/digests.py --new-names --compare tests/golden/digests.json

Experiments are written with the option names of that commit; `--new-names` spells them as `records/upgrade.py` does.
`--only` takes a part of the names, `--keep` keeps the runs' folders, so that records can be laid side by side. Of a
run there is

    model     the "model" of its last line
    models    of all lines
    params    the last one from run.params, hashed here: it holds if `model` is made in another way
    metrics   all other numbers of its lines, with where they stand, to seven digits; without seconds and settings
    settings  the settings of its lines, in order of size: their names may change
    privacy   the numbers of run.json's account, if there is one
    ended     how, if not at the last round

Float sums depend on the processor and on torch: "about" says where the file was made, and elsewhere it holds nothing.
Runs marked "known_wrong" have known bugs at that commit: their differences are shown and do not count.

`metrics` of all runs differ since `bytes` of a line are lengths on the wire, and no longer numbers times bits.

Some were made again by later code, because that commit's numbers were wrong: "batch_norm/group" and "dp_sgd/shuffled,
group" (groups of one feature lost what went in), "batch_norm/recompute" and "stack/batch_norm" (the variance left out
what lies between batches and clients), "algorithm/adafedprox" (the first round counted as a fall, and the record had
the first mu, as in "transform/joint_clip, loss"). Its Dirichlet split, which favoured
the last client, is kept here as `floored`, so that all others hold as they are; sweeps cannot stack what is named by
import path, so they have today's split and were made again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before torch looks
    os.environ["OMP_NUM_THREADS"] = os.environ["ATOLL_THREADS"] = "1"
    os.environ["ATOLL_BALANCE"] = "steps"  # who trains where on ranks follows from steps, not from seconds
sys.modules.setdefault("digests", sys.modules[__name__])  # models below are named by import path

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import atoll  # noqa: E402

Given = dict[str, Any]

# ---------------------------------------------------------------------------------------------------------- names

# Of options, in record lines: as newer code calls them, and as that commit did.
_OLD = {"noise_multiplier": "multiplier", "max_norm": "bound", "min_separation": "separation"}

# --------------------------------------------------------------------------------------------------------- models


def normed(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    """BatchNorm behind a linear layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, outputs))


def conv(inputs: tuple[int, ...], outputs: int, norm: bool = False) -> nn.Module:
    """A convolution, with BatchNorm or without."""
    between = nn.BatchNorm2d(4) if norm else nn.Identity()
    first = nn.Sequential(nn.Conv2d(1, 4, 3), between, nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(first, nn.Flatten(), nn.Linear(36, outputs))


def simple(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    """The same convolution, of layers whose gradients of examples are found in one backward pass."""
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, outputs))


# ---------------------------------------------------------------------------------------------------- experiments

BASE: Given = {
    "rounds": 3,
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 8, "alpha": 0.5},
    "cohort": {"name": "fixed", "size": 5},
    "task": {"model": {"name": "mlp", "widths": [12]}},
    "local": {"batch": 16, "max_steps": 4},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "engine": "vector",
    "evaluate": {"every": 2},
    "checkpoint": {"every": 0},
}

MOMENTUM = {"name": "sgd", "momentum": 0.9}
NORMED = {"name": "digests:normed"}
E = "equal_weights"
CLIP = {"name": "clip_l2", "bound": 0.2}  # some updates are longer, some are not
GAUSS = {"name": "gaussian_noise", "multiplier": 0.2}
FIXED = {"name": "fixed_point", "step": 0.001}
SUM = {"name": "secure_sum", "bits": 24}
DISCRETE = {"name": "discrete_gaussian", "multiplier": 0.2}
BANDED = {"name": "banded_noise", "multiplier": 0.2, "bands": 3}
CYCLIC = {"name": "cyclic", "size": 2, "separation": 3}
COINS = {"name": "cyclic_poisson", "size": 2.0, "separation": 3}
RARE = {"name": "poisson", "size": 0.8}  # nobody comes to some rounds
MANY = {"name": "iid", "clients": 30}
EVEN = {"partition": {"name": "iid", "clients": 8}, "cohort": "everyone", "local": {"batch": 8}, "rounds": 4}
COSINE = {"name": "cosine", "start": 0.3, "over": 3, "end": 0.05}
TRACE = [[1, 0, 1], [1, 0, 0], [0, 0, 1], [1, 0, 1], [1, 0, 1], [0, 0, 1], [1, 0, 0], [0, 0, 1]]  # nobody in round 2


def algorithm(name: str, lr: Any = 0.1, **options: Any) -> Given:
    return {"algorithm": {"name": name, "lr": lr, **options}}


def chain(*transforms: Any, **more: Any) -> Given:
    return {"transform": list(transforms), **more}


def noisy(*transforms: Any, **more: Any) -> Given:
    return {"transform": [E, CLIP, *transforms], **more}


def batch_norm(policy: str, model: Given = NORMED, **more: Any) -> Given:
    return {"task": {"model": model, "batch_norm": policy}, **more}


def dp_sgd(sampling: str, **options: Any) -> Given:
    return {"local": {"batch": 16, "max_steps": 3, "privacy": {"clip": 0.5, "sampling": sampling, **options}}}


EXPERIMENTS: dict[str, Given] = {
    # every algorithm, and the optimizers of clients
    "algorithm/fedsgd": algorithm("fedsgd"),
    "algorithm/fedavg": {},
    "algorithm/fedavg, seed": {"seed": 7},
    "algorithm/fedavg, momentum": algorithm("fedavg", optimizer=MOMENTUM),
    "algorithm/fedavg, nesterov, decay": algorithm(
        "fedavg", optimizer={**MOMENTUM, "nesterov": True, "weight_decay": 0.01}, server_lr=0.7
    ),
    "algorithm/fedavg, adam": algorithm("fedavg", lr=0.01, optimizer="adam"),
    "algorithm/fedavg, adam, decay": algorithm("fedavg", lr=0.01, optimizer={"name": "adam", "weight_decay": 0.1}),
    "algorithm/fedavg, adamw": algorithm("fedavg", lr=0.01, optimizer="adamw"),
    "algorithm/fedprox": algorithm("fedprox", mu=0.5),
    "algorithm/adafedprox": {**algorithm("adafedprox", mu=0.1, patience=1), "rounds": 5},
    "algorithm/scaffold, II": algorithm("scaffold"),
    "algorithm/scaffold, II, momentum": algorithm("scaffold", optimizer=MOMENTUM),
    "algorithm/scaffold, I": algorithm("scaffold", option="I"),
    "algorithm/scaffold, I, adam": algorithm("scaffold", lr=0.01, option="I", optimizer="adam"),
    "algorithm/scaffold, niid-bench": algorithm("scaffold", profile="niid-bench"),
    "algorithm/scaffold, niid-bench, momentum": algorithm("scaffold", profile="niid-bench", optimizer=MOMENTUM),
    "algorithm/scaffold, pfl-research, I": algorithm("scaffold", profile="pfl-research", option="I"),
    "algorithm/scaffold, pfl-research, II": algorithm("scaffold", profile="pfl-research"),
    "algorithm/fednova": algorithm("fednova"),
    "algorithm/fednova, momentum": {**algorithm("fednova", optimizer=MOMENTUM), "local": {"batch": 32}},
    "algorithm/fedavgm": algorithm("fedavgm"),
    "algorithm/fedadagrad": algorithm("fedadagrad"),
    "algorithm/fedadam": algorithm("fedadam"),
    "algorithm/fedyogi": algorithm("fedyogi"),
    "algorithm/feddyn": algorithm("feddyn"),
    "algorithm/moon": algorithm("moon"),
    "algorithm/reptile": {**algorithm("reptile"), "evaluate": {"after": True}},
    "algorithm/ditto": algorithm("ditto"),
    "algorithm/fedper": algorithm("fedper"),
    "algorithm/fedbn": {**algorithm("fedbn"), "task": {"model": NORMED}},
    "algorithm/fedbn, keep": algorithm("fedbn", keep=["hidden.0.bias"]),
    "algorithm/local": algorithm("local"),
    "algorithm/local, momentum": algorithm("local", optimizer=MOMENTUM),
    "algorithm/centralised": algorithm("centralised"),
    "algorithm/centralised, adam": algorithm("centralised", lr=0.01, optimizer="adam"),
    # models and data
    "task/dropout": {"task": {"model": {"name": "mlp", "widths": [12], "dropout": 0.4}}},
    "task/conv": {"task": {"model": "digests:conv"}},
    "task/binary": {"data": "breast_cancer", "task": {"model": "logistic"}},
    "task/regression": {"data": "diabetes", "task": {"model": "linear"}, "partition": {"name": "iid", "clients": 8}},
    "task/bfloat16": {"engine": {"name": "vector", "precision": "bfloat16"}},
    # clips
    "transform/equal_weights": chain(E),
    "transform/clip_l2": chain(CLIP),
    "transform/clip_per_layer": chain(E, {"name": "clip_per_layer", "bound": 0.3}, GAUSS),
    "transform/clip_per_layer, l1": chain(
        E, {"name": "clip_per_layer", "bound": 0.3, "norm": "l1"}, {"name": "laplace_noise", "multiplier": 0.2}
    ),
    "transform/clip_layers": chain(E, {"name": "clip_layers", "bounds": {"weight": 0.3, "rest": 0.1}}, GAUSS),
    "transform/clip_layers, l1": chain({"name": "clip_layers", "bounds": {"hidden": 0.3, "rest": 0.1}, "norm": "l1"}),
    "transform/clip_l1": chain(E, {"name": "clip_l1", "bound": 2.0}),
    "transform/adaptive_clip": chain(E, {"name": "adaptive_clip", "start": 0.3, "rate": 0.5}, GAUSS, rounds=5),
    "transform/adaptive_clip, no noise": chain(E, {"name": "adaptive_clip", "quantile": 0.8, "count_share": 0.1}),
    "transform/joint_clip": chain(
        E,
        {"name": "joint_clip", "bounds": {"delta": 0.2, "control": 0.5}, "shares": {"delta": 0.8, "control": 0.2}},
        GAUSS,
        **algorithm("scaffold"),
    ),
    "transform/joint_clip, loss": chain(
        E,
        {"name": "joint_clip", "bounds": {"delta": 0.2, "loss": 2.25}, "shares": {"delta": 0.99, "loss": 0.01}},
        GAUSS,
        **algorithm("adafedprox"),
    ),
    # noise on the sum
    "transform/gaussian_noise": noisy(GAUSS),
    "transform/gaussian_noise, 0": noisy({"name": "gaussian_noise", "multiplier": 0.0}),
    "transform/gaussian_noise, epsilon, everyone": noisy(
        {"name": "gaussian_noise", "epsilon": 20.0, "delta": 0.001}, cohort="everyone"
    ),
    "transform/gaussian_noise, epsilon, poisson": noisy(
        {"name": "gaussian_noise", "epsilon": 8.0, "delta": 0.001},
        cohort={"name": "poisson", "size": 6},
        partition=MANY,
    ),
    "transform/gaussian_noise, epsilon, fixed": noisy(
        {"name": "gaussian_noise", "epsilon": 20.0, "delta": 0.001}, privacy={"accountant": "rdp"}
    ),
    "transform/laplace_noise": chain(
        E, {"name": "clip_l1", "bound": 2.0}, {"name": "laplace_noise", "multiplier": 0.05}
    ),
    "transform/banded_noise": noisy(BANDED, cohort=CYCLIC, rounds=5),
    "transform/banded_noise, coins, epsilon": noisy(
        {"name": "banded_noise", "epsilon": 20.0, "delta": 0.001}, cohort=COINS, rounds=5
    ),
    "transform/tree_noise": noisy({"name": "tree_noise", "multiplier": 0.2}, cohort="everyone", rounds=5),
    "transform/tree_noise, restart": noisy(
        {"name": "tree_noise", "multiplier": 0.2, "restart": 2}, cohort=CYCLIC, rounds=5
    ),
    "transform/noise_cohort, poisson": noisy(
        {"name": "gaussian_noise", "multiplier": 1.0, "noise_cohort": 50},
        privacy={"simulate": {"population": 100_000, "sampling": "poisson"}},
    ),
    "transform/noise_cohort, epsilon, fixed": noisy(
        {"name": "gaussian_noise", "epsilon": 4.0, "delta": 1e-6, "noise_cohort": 50},
        privacy={"simulate": {"population": 100_000, "sampling": "fixed"}},
    ),
    "transform/noise_cohort, laplace": chain(
        E,
        {"name": "clip_l1", "bound": 2.0},
        {"name": "laplace_noise", "multiplier": 1.0, "noise_cohort": 50},
        cohort={"name": "poisson", "size": 5},
        privacy={"simulate": {"population": 100_000}},
    ),
    "transform/noise_cohort, banded": noisy(
        {"name": "banded_noise", "multiplier": 1.0, "bands": 2, "noise_cohort": 50, "separation": 3},
        privacy={"simulate": {"population": 100_000, "sampling": "cyclic"}},
    ),
    "transform/noise_cohort, tree": noisy(
        {"name": "tree_noise", "multiplier": 1.0, "noise_cohort": 50, "separation": 2},
        privacy={"simulate": {"population": 100_000, "sampling": "cyclic"}},
    ),
    # integers
    "transform/fixed_point": noisy(FIXED),
    "transform/discrete_gaussian": noisy(FIXED, DISCRETE),
    "transform/discrete_gaussian, secure_sum": noisy(FIXED, DISCRETE, SUM),
    "transform/skellam": noisy(FIXED, {"name": "skellam", "multiplier": 0.2}),
    "transform/skellam, epsilon, secure_sum": noisy(FIXED, {"name": "skellam", "epsilon": 50.0, "delta": 0.001}, SUM),
    "transform/skellam, adaptive_clip": chain(
        E, "adaptive_clip", FIXED, {"name": "skellam", "multiplier": 0.2}, SUM, rounds=4
    ),
    "transform/secure_sum": noisy(FIXED, SUM),
    # local mechanisms, and those with less of a guarantee
    "transform/local_gaussian": noisy({"name": "local_gaussian", "epsilon": 50.0, "delta": 1e-5}),
    "transform/local_laplace": chain(E, {"name": "clip_l1", "bound": 0.5}, {"name": "local_laplace", "epsilon": 50.0}),
    "transform/privunit": noisy({"name": "privunit", "epsilon": 20.0}),
    "transform/approximate_local, privunit": noisy({"name": "approximate_local", "epsilon": 20.0}),
    "transform/approximate_local, gaussian": noisy(
        {"name": "approximate_local", "epsilon": 20.0, "mechanism": "gaussian", "delta": 1e-5}
    ),
    "transform/approximate_local, laplace": chain(
        E, {"name": "clip_l1", "bound": 0.5}, {"name": "approximate_local", "epsilon": 20.0, "mechanism": "laplace"}
    ),
    "transform/weak_dp": chain({"name": "weak_dp", "bound": 0.2, "std": 0.01}),
    "transform/nbafl": chain(
        E, {"name": "nbafl", "bound": 0.2, "epsilon": 50.0, "delta": 0.001, "examples": 20, "rounds": 20, "clients": 8}
    ),
    "transform/top_k": chain({"name": "top_k", "share": 0.2}, rounds=5),
    "transform/top_k, noise": chain({"name": "top_k", "share": 0.3}, E, CLIP, GAUSS, rounds=5),
    "transform/noise, scaffold": noisy(GAUSS, **algorithm("scaffold")),
    "transform/noise, fedadam": noisy(GAUSS, **algorithm("fedadam")),
    "transform/noise, fedper": noisy(GAUSS, **algorithm("fedper")),
    # reducers
    "reducer/median": {"reducer": "median"},
    "reducer/median, even": {"reducer": "median", "cohort": {"name": "fixed", "size": 4}},
    "reducer/median, local_gaussian": noisy(
        {"name": "local_gaussian", "epsilon": 50.0, "delta": 1e-5}, reducer="median"
    ),
    "reducer/trimmed_mean": {"reducer": {"name": "trimmed_mean", "share": 0.2}},
    "reducer/trimmed_mean, scaffold": {"reducer": {"name": "trimmed_mean", "share": 0.3}, **algorithm("scaffold")},
    # who takes part
    "cohort/everyone": {"cohort": "everyone"},
    "cohort/fixed_with_replacement": {"cohort": {"name": "fixed_with_replacement", "size": 10}},
    "cohort/fixed_with_replacement, top_k": chain(
        {"name": "top_k", "share": 0.2}, cohort={"name": "fixed_with_replacement", "size": 10}
    ),
    "cohort/fixed_with_replacement, noise": noisy(GAUSS, cohort={"name": "fixed_with_replacement", "size": 10}),
    "cohort/fraction": {"cohort": {"name": "fraction", "share": 0.3}},
    "cohort/poisson": {"cohort": {"name": "poisson", "probability": 0.4}},
    "cohort/poisson, empty": {"cohort": RARE, "rounds": 8},
    "cohort/poisson, empty, scaffold": {"cohort": RARE, "rounds": 8, **algorithm("scaffold")},
    "cohort/poisson, empty, noise": noisy(GAUSS, cohort=RARE, rounds=8),
    "cohort/poisson, empty, adaptive_clip": chain(E, "adaptive_clip", GAUSS, cohort=RARE, rounds=8),
    "cohort/cyclic": {"cohort": CYCLIC},
    "cohort/cyclic_poisson": {"cohort": COINS},
    "cohort/cyclic_poisson, noise": noisy(GAUSS, cohort={**COINS, "size": 1.0}, rounds=5),
    "cohort/available": {"cohort": {"name": "available", "trace": TRACE}},
    "cohort/available, size": {"cohort": {"name": "available", "trace": TRACE, "size": 3}, "rounds": 4},
    "cohort/available, noise": noisy(GAUSS, cohort={"name": "available", "trace": TRACE, "size": 3}),
    # BatchNorm
    "batch_norm/average": batch_norm("average"),
    "batch_norm/local": batch_norm("local"),
    "batch_norm/recompute": batch_norm("recompute"),
    "batch_norm/freeze": batch_norm("freeze"),
    "batch_norm/group": batch_norm("group"),
    "batch_norm/average, conv": batch_norm("average", {"name": "digests:conv", "norm": True}),
    "batch_norm/group, conv": batch_norm("group", {"name": "digests:conv", "norm": True}),
    "batch_norm/average, fedadam": batch_norm("average", **algorithm("fedadam")),
    "batch_norm/average, fedsgd": batch_norm("average", **algorithm("fedsgd")),
    "batch_norm/average, noise": batch_norm("average", **noisy(GAUSS)),
    "batch_norm/local, scaffold": batch_norm("local", **algorithm("scaffold")),
    "batch_norm/local, ditto": batch_norm("local", **algorithm("ditto")),
    "batch_norm/local, noise": batch_norm("local", **noisy(GAUSS)),
    "batch_norm/recompute, fedavgm": batch_norm("recompute", **algorithm("fedavgm"), cohort=RARE, rounds=6),
    "batch_norm/average, centralised": batch_norm("average", **algorithm("centralised")),
    "batch_norm/local, centralised": batch_norm("local", **algorithm("centralised")),
    # schedules, and runs that end early
    "schedule/lr, cosine": algorithm("fedavg", lr=COSINE),
    "schedule/lr, step": algorithm("fedavg", lr={"name": "step", "start": 0.2, "every": 1, "factor": 0.5}),
    "schedule/lr, warmup": algorithm("scaffold", lr={"name": "warmup", "start": 0.2, "over": 2}),
    "schedule/lr, plateau": {
        **algorithm("fedavg", lr={"name": "plateau", "start": 0.1, "patience": 1, "threshold": 0.9, "stop": 2}),
        "evaluate": {"every": 1},
        "rounds": 8,
    },
    "schedule/mu, follow": {**algorithm("fedprox", mu={"name": "follow", "start": 0.5}), "evaluate": {"every": 1}},
    "schedule/momentum": algorithm("fedavg", optimizer={"name": "sgd", "momentum": COSINE}),
    "schedule/bound": chain(E, {"name": "clip_l2", "bound": COSINE}, GAUSS),
    "schedule/bound, integers": chain(E, {"name": "clip_l2", "bound": COSINE}, FIXED, DISCRETE, SUM),
    "schedule/bound, banded": chain(E, {"name": "clip_l2", "bound": COSINE}, BANDED, cohort=CYCLIC),
    "schedule/multiplier": noisy({"name": "gaussian_noise", "multiplier": COSINE}),
    "schedule/quantile": chain(E, {"name": "adaptive_clip", "quantile": COSINE}, GAUSS),
    "stop/patience": {"stop": {"patience": 1, "threshold": 0.9}, "evaluate": {"every": 1}, "rounds": 8},
    "stop/target": {"stop": {"patience": 8, "metric": "train_loss", "better": "lower", "target": 2.15}, "rounds": 8},
    "stop/patience, noise": noisy(
        GAUSS, stop={"patience": 1, "threshold": 0.9}, evaluate={"every": 1}, rounds=8, cohort="everyone"
    ),
    "stop/budget": noisy(
        {"name": "gaussian_noise", "multiplier": 4.0}, cohort="everyone", privacy={"budget": 1.5}, rounds=20
    ),
    # canaries
    "canaries/gaussian": noisy(GAUSS, privacy={"canaries": 400}, rounds=4),
    "canaries/gaussian, poisson": noisy(
        GAUSS, privacy={"canaries": 400}, rounds=4, cohort={"name": "poisson", "size": 3}
    ),
    "canaries/gaussian, empty": noisy(GAUSS, privacy={"canaries": 400}, rounds=8, cohort=RARE),
    "canaries/adaptive_clip": chain(E, "adaptive_clip", GAUSS, privacy={"canaries": 400}, rounds=4),
    "canaries/discrete_gaussian": noisy(FIXED, DISCRETE, SUM, privacy={"canaries": 400}, rounds=4),
    "canaries/banded": noisy(BANDED, privacy={"canaries": 400}, cohort=CYCLIC, rounds=5),
    "canaries/scaffold": noisy(GAUSS, privacy={"canaries": 400}, **algorithm("scaffold")),
    # DP-SGD inside clients
    "dp_sgd/shuffled": dp_sgd("shuffled", multiplier=0.5),
    "dp_sgd/poisson": dp_sgd("poisson", multiplier=0.5),
    "dp_sgd/fixed": dp_sgd("fixed", multiplier=0.5),
    "dp_sgd/poisson, epsilon": dp_sgd("poisson", epsilon=8.0, delta=1e-4),
    "dp_sgd/shuffled, fedprox, momentum": {
        **dp_sgd("shuffled", multiplier=0.5),
        **algorithm("fedprox", mu=0.1, optimizer=MOMENTUM),
    },
    "dp_sgd/poisson, scaffold": {**dp_sgd("poisson", multiplier=0.5), **algorithm("scaffold")},
    "dp_sgd/shuffled, conv": {**dp_sgd("shuffled", multiplier=0.5), "task": {"model": "digests:simple"}},
    "dp_sgd/shuffled, group": {**dp_sgd("shuffled", multiplier=0.5), **batch_norm("group")},
    "dp_sgd/shuffled, and noise": {**dp_sgd("shuffled", multiplier=0.5), **noisy(GAUSS)},
    # no server
    "gossip/ring": {"round": "gossip", "cohort": "everyone"},
    "gossip/complete": {"round": {"name": "gossip", "graph": "complete"}, "cohort": "everyone"},
    "gossip/random": {"round": {"name": "gossip", "graph": "random", "probability": 0.4}, "cohort": "everyone"},
    "gossip/star, fixed": {"round": {"name": "gossip", "graph": "star"}},
    "gossip/grid, fedadam": {"round": {"name": "gossip", "graph": "grid"}, **algorithm("fedadam")},
    "gossip/ring, clip": chain(CLIP, round="gossip"),
    "gossip/ring, top_k": chain({"name": "top_k", "share": 0.2}, round="gossip"),
    "gossip/ring, batch_norm": batch_norm("average", round="gossip"),
    "gossip/ring, joint_clip": chain(
        {"name": "joint_clip", "bounds": {"weight": 0.2, "rest": 0.1}, "shares": {"weight": 0.5, "rest": 0.5}},
        round="gossip",
    ),
    "gossip/ring, weak_dp": chain({"name": "weak_dp", "bound": 0.2, "std": 0.01}, round="gossip"),
    # what is measured
    "evaluate/after": {"evaluate": {"after": True}},
    "evaluate/holdout": {"evaluate": {"holdout": 0.3}},
    "evaluate/holdout, after, few": {"evaluate": {"holdout": 0.3, "after": True, "clients": 3, "rows": 100}},
    "evaluate/ditto, holdout, after": {**algorithm("ditto"), "evaluate": {"holdout": 0.3, "after": True}},
    "evaluate/fedper, holdout, after": {**algorithm("fedper"), "evaluate": {"holdout": 0.3, "after": True}},
    "evaluate/gossip, after": {"round": "gossip", "evaluate": {"holdout": 0.3, "after": True}},
    "evaluate/top_k": {"task": {"model": "linear", "top_k": [2, 3]}, "evaluate": {"batch": 50}},
    # what engines are compared with; "steps" has enough of them to be captured
    "engine/steps": EVEN,
    "engine/steps, scaffold": {**EVEN, **algorithm("scaffold")},
    "engine/steps, dropout, adam": {
        **EVEN,
        **algorithm("fedavg", lr=0.01, optimizer="adam"),
        "task": {"model": {"name": "mlp", "widths": [12], "dropout": 0.4}},
    },
    "engine/steps, conv": {**EVEN, "task": {"model": "digests:conv"}},
    "engine/steps, conv, batch_norm": {**EVEN, **batch_norm("local", {"name": "digests:conv", "norm": True})},
    "engine/steps, dp_sgd": {
        **EVEN,
        "local": {"batch": 4, "max_steps": 16, "privacy": {"clip": 0.5, "multiplier": 0.5}},
    },
    "engine/uneven": {"partition": {"name": "power_law", "clients": 9}, "cohort": "everyone", "local": {"epochs": 2}},
    "engine/memory in a file": {**algorithm("scaffold"), "engine": {"name": "vector", "chunk": 3, "memory_gb": 1e-6}},
}

KNOWN_WRONG = {"batch_norm/local, centralised", "gossip/ring, joint_clip", "gossip/ring, weak_dp"}

# ------------------------------------------------------------------------------- the same, in other ways than alone

ENGINES: dict[str, Any] = {
    "loop": "loop",
    "vector by 2": {"name": "vector", "chunk": 2},
    "vector, not captured": {"name": "vector", "chunk": 3, "capture": False},
    "threads": {"name": "threads", "workers": 2},
}
ON_ENGINES = (
    "engine/steps",
    "engine/steps, scaffold",
    "engine/uneven",
    "engine/steps, dropout, adam",
    "engine/steps, conv",
    "engine/steps, conv, batch_norm",
    "engine/steps, dp_sgd",
    "transform/top_k, noise",
    "transform/discrete_gaussian, secure_sum",
    "batch_norm/recompute",
    "reducer/median",
    "dp_sgd/poisson",
    "evaluate/ditto, holdout, after",
)
ON_RANKS = (
    "algorithm/fedavg, momentum",
    "algorithm/scaffold, II",
    "transform/adaptive_clip",
    "transform/discrete_gaussian, secure_sum",
    "batch_norm/recompute",
    "evaluate/ditto, holdout, after",
)
RESUMED = (
    "algorithm/scaffold, II",
    "canaries/gaussian, poisson",
    "transform/banded_noise",
    "transform/adaptive_clip",
    "transform/top_k, noise",
    "schedule/lr, plateau",
)
STACKS: dict[str, list[Given]] = {
    "seeds": [{"seed": s} for s in range(3)],
    "seeds, scaffold": [{"seed": s, **algorithm("scaffold")} for s in range(3)],
    "rates": [algorithm("fedavg", lr=lr, optimizer=MOMENTUM) for lr in (0.05, 0.1, COSINE)],
    "noise": [
        chain(E, {"name": "clip_l2", "bound": b}, {"name": "gaussian_noise", "multiplier": m}, seed=s)
        for s, (b, m) in enumerate(((0.1, 0.5), (1.0, 0.2), (COSINE, 0.1)))
    ],
    "batch_norm": [batch_norm("recompute", seed=s) for s in range(2)],
}
SWEEPS: dict[str, Given] = {
    "seeds": {"sweep": {"seeds": 3}},
    "rates": {"sweep": {"algorithm.lr": [0.05, 0.1, 0.2]}, **noisy(GAUSS)},
}
SIMULATED: dict[str, Given] = {  # on arrays; what client 2 holds overflows
    "drop": {},
    "drop, vector by 2": {"engine": {"name": "vector", "chunk": 2}},
    "drop, loop": {"engine": "loop"},
    "drop, threads": {"engine": {"name": "threads", "workers": 2}},
    "drop, scaffold": algorithm("scaffold"),
    "drop, noise": noisy(GAUSS),
    "drop, noise, poisson": noisy(GAUSS, cohort={"name": "poisson", "size": 4}),
    "drop, integers": noisy(FIXED, DISCRETE, SUM),
    "drop, median": {"reducer": "median"},
    "drop, gossip": {"round": "gossip"},
}

# -------------------------------------------------------------------------------------------------------- runners


def spelled(given: Mapping[str, Any], new: bool) -> Given:
    """The tables of a file with the options' names as the code at hand has them."""
    if not new:
        return dict(given)
    from atoll.records.upgrade import upgraded

    keep = "sweep" in given or given.get("partition", {}).get("name") != "dirichlet"  # sweeps stack no import paths
    return upgraded(given if keep else {**given, "partition": {**given["partition"], "name": "digests:floored"}})


def floored(clients: int, alpha: float) -> Callable[..., Any]:
    """The Dirichlet split of that commit, whose shares were cut by floors of the running sum."""
    from atoll.data.partition import Dirichlet
    from atoll.data.partition.assign import counts_by_running_floor
    from atoll.data.partition.redraw import redraw
    from atoll.rng import host

    class Floored(Dirichlet):
        def counts(self, totals: Any, key: Tensor) -> Any:
            def draw(attempt: int) -> Any:
                shares = host.dirichlet(host.fold(key, 3 + attempt), self.alpha, (len(totals), self.clients))
                return counts_by_running_floor(shares, totals)

            return redraw(draw, self.minimum, self.short, "")

    return Floored(clients, alpha)


class Maker:
    """Makes runs in a folder. `jobs` has a function for each name; some make several at once."""

    def __init__(self, folder: Path, new: bool) -> None:
        self.folder, self.new = folder, new

    def experiment(self, name: str, **changes: Any) -> Given:
        return spelled({**BASE, **EXPERIMENTS[name], **changes}, self.new)

    def alone(self, name: str, place: str, **changes: Any) -> atoll.Run:
        return atoll.run(self.experiment(name, **changes), self.folder / place, device="cpu")

    def resumed(self, name: str, place: str) -> atoll.Run:
        """Interrupted after two rounds, as by Ctrl-C, which leaves a checkpoint; then resumed."""

        def watch(done: int, rounds: int, entry: object) -> None:
            if done == 2:
                signal.raise_signal(signal.SIGINT)

        given, folder = self.experiment(name), self.folder / place
        half = atoll.run(given, folder, device="cpu", watch=watch)
        assert (half.status, len(half.history)) == ("interrupted", 2), half.status
        return atoll.run(given, folder, device="cpu", resume=True)

    def simulated(self, name: str, place: str) -> atoll.Run:
        draw = torch.Generator().manual_seed(0)
        x = torch.randn(120, 3, generator=draw)
        y, test = (x[:, 0] + x[:, 1] > 0).long(), torch.randn(40, 3, generator=draw)
        x[40:60] = x[40:60].sign() * 3.3e38
        options = {"cohort": 4, **algorithm("fedavg"), "engine": "vector", **SIMULATED[name]}
        options = spelled(options, self.new)
        return atoll.simulate(
            _linear,
            (x, y),
            (test, (test[:, 0] > 0).long()),
            clients=[range(i, i + 20) for i in range(0, 120, 20)],
            transforms=options.pop("transform", []),
            rounds=4,
            batch=8,
            on_divergence="drop",
            evaluate={"clients": 0},
            out=self.folder / place,
            device="cpu",
            **options,
        )

    def stacked(self, name: str, place: str) -> list[atoll.Run]:
        from atoll.runs import run_together  # the only name here that `atoll` itself does not have

        given = [atoll.Experiment.parse(spelled({**BASE, **changes}, self.new)) for changes in STACKS[name]]
        runs: list[atoll.Run] = run_together(
            given, [self.folder / place / str(i) for i in range(len(given))], device="cpu"
        )
        assert {run.info["engine"]["together"] for run in runs} == {len(given)}
        return runs

    def swept(self, name: str, place: str) -> list[atoll.Run]:
        given = spelled({**BASE, **SWEEPS[name]}, self.new)
        runs: list[atoll.Run] = atoll.sweep.run(given, self.folder / place, device="cpu").runs
        assert {run.info["engine"]["together"] for run in runs} == {len(runs)}
        return runs

    def on_ranks(self, names: list[str]) -> None:
        """In two processes under torchrun, all of them in a row."""
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
        command += ["--new-names"] * self.new + ["--keep", str(self.folder), "--as-rank", *names]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])


def _linear() -> nn.Module:
    return nn.Linear(3, 2)


def jobs(maker: Maker, only: Callable[[str], bool]) -> Iterator[tuple[list[str], Callable[[], list[atoll.Run]]]]:
    """What to run: names, and a function that gives a run for each."""

    def one(name: str, make: Callable[..., atoll.Run], *args: Any, **changes: Any) -> Any:
        return [name], lambda: [make(*args, _place(name), **changes)]

    found: list[Any] = [one(n, maker.alone, n) for n in EXPERIMENTS]
    found += [one(f"{n} @ {e}", maker.alone, n, engine=c) for n in ON_ENGINES for e, c in ENGINES.items()]
    found += [one(f"{n} @ resumed", maker.resumed, n) for n in RESUMED]
    found += [one(f"simulate/{n}", maker.simulated, n) for n in SIMULATED]
    for name, given in STACKS.items():
        names = [f"stack/{name} @ {i}" for i in range(len(given))]
        found.append((names, lambda name=name: maker.stacked(name, _place(f"stack/{name}"))))
    for name in SWEEPS:
        names = [f"sweep/{name} @ {i}" for i in range(3)]
        found.append((names, lambda name=name: maker.swept(name, _place(f"sweep/{name}"))))
    yield from ((names, make) for names, make in found if any(map(only, names)))
    ranked = [n for n in ON_RANKS if only(f"{n} @ ranks")]
    if ranked:
        yield [f"{n} @ ranks" for n in ranked], lambda: _ranked(maker, ranked)


def _ranked(maker: Maker, names: list[str]) -> list[atoll.Run]:
    maker.on_ranks(names)
    return [atoll.Run(maker.folder / _place(f"{n} @ ranks")) for n in names]


def _place(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)


# ----------------------------------------------------------------------------------------------- what is kept of them

_APART = ("seconds", "settings", "model")


def kept(run: atoll.Run) -> Given:
    lines = run.history
    found = {
        "model": lines[-1]["model"],
        "models": short(e["model"] for e in lines),
        "params": tensors(run.params),
        "metrics": short(numbers([{k: v for k, v in e.items() if k not in _APART} for e in lines])),
        "settings": short(str(sorted(_number(v) for v in e["settings"].values())) for e in lines),
    }
    if run.status != "finished":
        found["ended"] = run.status.split(":")[0]
    if "privacy" in run.info:
        found["privacy"] = short(numbers(run.info["privacy"]))
    return found


def numbers(value: Any, where: str = "") -> Iterator[str]:
    """Every number in it, with where it stands."""
    if isinstance(value, Mapping):
        for k in sorted(value, key=lambda k: _OLD.get(k, k)):
            yield from numbers(value[k], f"{where}/{_OLD.get(k, k)}")
    elif isinstance(value, list):
        for i, x in enumerate(value):
            yield from numbers(x, f"{where}/{i}")
    elif not isinstance(value, str):
        yield f"{where} {_number(value)}"


def _number(x: float | None) -> str:
    return f"{x:.7g}" if isinstance(x, float) else str(x)


def short(words: Any) -> str:
    return hashlib.blake2b("\n".join(words).encode(), digest_size=6).hexdigest()


def tensors(params: Mapping[str, Tensor]) -> str:
    """Of names, types, shapes and bytes."""
    h = hashlib.blake2b(digest_size=6)
    for name in sorted(params):
        x = params[name].detach().cpu().contiguous()
        h.update(f"{name} {x.dtype} {tuple(x.shape)}".encode())
        h.update(x.reshape(-1).view(torch.uint8).numpy().tobytes())
    return h.hexdigest()


def about() -> Given:
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) if os.name == "posix" else None
    return {
        "torch": torch.__version__,
        "processor": f"{model[1] if model else '?'}, {torch.backends.cpu.get_cpu_capability()}",
    }


def made(maker: Maker, only: Callable[[str], bool]) -> dict[str, Given]:
    found: dict[str, Given] = {}
    for names, make in jobs(maker, only):
        began = time.perf_counter()
        try:
            new = [kept(run) for run in make()]
            assert len(new) == len(names)
        except Exception as e:  # shown and kept, so that the others are compared
            print(f"{names[0]}: {type(e).__name__}: {str(e)[:600]}", file=sys.stderr)
            new = [{"error": type(e).__name__}] * len(names)
        found |= dict(zip(names, new, strict=True))
        print(f"{time.perf_counter() - began:6.2f} s  {names[0]}" + f" and {len(names) - 1} more" * (len(names) > 1))
    return {k: {**v, **({"known_wrong": True} if k in KNOWN_WRONG else {})} for k, v in found.items() if only(k)}


def differences(ours: Mapping[str, Given], theirs: Mapping[str, Given]) -> int:
    """Print every one; how many count."""
    wrong = 0
    for name in sorted({*ours, *theirs}):
        a, b = theirs.get(name, {}), ours.get(name, {})
        excused = bool(a.get("known_wrong"))
        keys = ["error"] if not a or not b or "error" in b else sorted({*a, *b})
        for key in keys:
            before, now = (x.get(key, "nothing" if x else "no such run") for x in (a, b))
            if before != now:
                wrong += not excused
                print(f"{name}: {key}: {before} -> {now}" + " (known wrong before)" * excused)
    return wrong


def written(runs: Mapping[str, Given]) -> str:
    """JSON with a line for each run."""
    lines = ",\n".join(f"  {json.dumps(k)}: {json.dumps(runs[k], sort_keys=True)}" for k in sorted(runs))
    return f'{{\n "about": {json.dumps(about(), sort_keys=True)},\n "runs": {{\n{lines}\n }}\n}}\n'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="PATTERN", default="", help="a regular expression: runs whose names have it")
    parser.add_argument("--out", metavar="FILE", type=Path, help="write the digests here")
    parser.add_argument(
        "--compare", metavar="FILE", type=Path, help="print what differs from these; exit 1 if any does"
    )
    parser.add_argument("--new-names", action="store_true", help="options as they are called today")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="an empty folder for the runs, to look at records")
    parser.add_argument("--as-rank", nargs="+", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.as_rank:
        maker = Maker(asked.keep, asked.new_names)
        for name in asked.as_rank:
            maker.alone(name, _place(f"{name} @ ranks"))
        return 0
    print(f"atoll at {Path(atoll.__file__).parent}")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_CACHE_HOME"] = f"{scratch}/cache"
        maker = Maker(asked.keep or Path(scratch, "runs"), asked.new_names)
        runs = made(maker, lambda name: re.search(asked.only, name) is not None)
    print(f"{len(runs)} runs in {time.perf_counter() - began:.0f} s")
    if asked.out:
        asked.out.write_text(written(runs))
    failed = sum("error" in v and k not in KNOWN_WRONG for k, v in runs.items())
    if not asked.compare:
        return int(failed > 0)
    there = json.loads(asked.compare.read_text())
    if there["about"] != about():
        print(f"made elsewhere, so that digests may differ: {there['about']}, here {about()}")
    wanted = {k: v for k, v in there["runs"].items() if re.search(asked.only, k)}
    wrong = differences(runs, wanted)
    print(f"{wrong} differences")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
