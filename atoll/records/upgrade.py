"""What options and modules were called in the first version, and its experiments in the names of today.

>>> upgraded({"rounds": 3, "transform": ["equal_weights", {"name": "clip_l2", "bound": 0.5}]})
{'rounds': 3, 'transform': ['equal_weights', {'name': 'clip_l2', 'max_norm': 0.5}]}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_NOISE = {"multiplier": "noise_multiplier"}
_CLIP = {"bound": "max_norm"}
_APART = {"separation": "min_separation"}

# The name of an entry, or the path of a table -> what its options were called -> what they are called.
RENAMED: dict[str, dict[str, str]] = {
    "adaptive_clip": {"start": "initial_max_norm"},
    "banded_noise": _NOISE | _APART,
    "clip_l1": _CLIP,
    "clip_l2": _CLIP,
    "clip_layers": {"bounds": "max_norms"},
    "clip_per_layer": _CLIP,
    "cyclic": _APART,
    "cyclic_poisson": _APART,
    "discrete_gaussian": _NOISE,
    "gaussian_noise": _NOISE,
    "joint_clip": {"bounds": "max_norms"},
    "laplace_noise": _NOISE,
    "local.privacy": _NOISE | {"clip": "max_norm"},
    "nbafl": _CLIP,
    "skellam": _NOISE,
    "tree_noise": _NOISE | _APART,
    "weak_dp": _CLIP,
}

# The same for numbers that were found and not typed, and for server optimizers: in the settings of a record's lines.
_FOUND = {"bound": "sensitivity"}
_MECHANISMS = ("banded_noise", "discrete_gaussian", "gaussian_noise", "laplace_noise", "skellam", "tree_noise")
_SETTINGS = {name: RENAMED[name] | _FOUND for name in _MECHANISMS} | {"privunit": _CLIP}
_LAYERS, _TRANSFORMS = "chain.layers.", "chain.transforms."
_ADAPTIVE = {f"algorithm.{name}": f"algorithm.server.{name}" for name in ("b1", "b2", "momentum", "tau")}
_WITH_SERVER = ("fedadagrad", "fedadam", "fedavgm", "fedyogi")

# Modules that records name because a program handed something over, or an attack trained its own models.
_MOVED = {
    "atoll.runs.given:": "atoll.runs.python_inputs:",
    "atoll.attack.halves:": "atoll.attacks.membership.random_half:",
}


def renamed_option(owner: str, option: str) -> str | None:
    """What an option of this entry or table is called now; None where it always was called so."""
    return RENAMED.get(owner, {}).get(option)


def upgraded(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """A whole experiment, as a record holds it, in the names of today; itself where it has them already."""
    return {key: _upgraded(value, key) for key, value in experiment.items()}


def is_old(line: Mapping[str, Any]) -> bool:
    """May a line of a record have names of the first version?"""
    settings, drawn = line.get("settings", {}), line.get("cohort", {}).get("how", {})
    return any(k in _APART for k in drawn) or any(k.startswith(_LAYERS) or k in _ADAPTIVE for k in settings)


def upgraded_line(line: Mapping[str, Any], experiment: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the record of this experiment, in the names of today; itself where it has them already."""
    settings = {_setting(name, experiment): value for name, value in line.get("settings", {}).items()}
    drawn = {_APART.get(key, key): value for key, value in line["cohort"]["how"].items()}
    return {**line, "cohort": {**line["cohort"], "how": drawn}, "settings": settings}


def _setting(name: str, experiment: Mapping[str, Any]) -> str:
    """Where a setting stands now: chain.layers.1.bound is chain.transforms.1.max_norm, if that one clips."""
    if name.startswith(_LAYERS):
        place, _, option = name.removeprefix(_LAYERS).partition(".")
        owner = experiment["transform"][int(place)]["name"]
        names = _SETTINGS.get(owner) or RENAMED.get(owner, {})
        return f"{_TRANSFORMS}{place}.{names.get(option, option)}"
    return _ADAPTIVE.get(name, name) if experiment["algorithm"]["name"] in _WITH_SERVER else name


def upgraded_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """What run.json says, with the experiment and its digest as this version would write them."""
    experiment = upgraded(info["experiment"])
    if experiment == info["experiment"]:
        return dict(info)
    return {**info, "experiment": experiment, "digest": experiment_digest(experiment)}


def experiment_digest(experiment: Mapping[str, Any]) -> str:
    """A short fingerprint of a complete experiment."""
    text = json.dumps(experiment, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _upgraded(value: Any, path: str) -> Any:
    """A value and all that is inside of it; `path` is where it stands."""
    if isinstance(value, list):
        return [_upgraded(item, path) for item in value]
    if not isinstance(value, Mapping):
        return _moved(value) if isinstance(value, str) else value
    if path == "round" and "probability" in value:
        value = _with_graph(value)
    owner = str(value.get("name", path))
    names = RENAMED.get(owner, {})
    return {names.get(key, key): _upgraded(item, f"{path}.{key}") for key, item in value.items()}


def _with_graph(value: Mapping[str, Any]) -> dict[str, Any]:
    """A round whose graph was a name beside its only option, with the graph as an entry."""
    graph, probability = value.get("graph", "ring"), value["probability"]
    entry = {"name": graph, "seed": 0, "probability": probability} if graph == "random" else {"name": graph}
    rest = {key: item for key, item in value.items() if key not in ("graph", "probability")}
    return {**rest, "graph": entry, "weights": "metropolis"}


def _moved(name: str) -> str:
    """The import path of a builder, where it is now."""
    old = next((module for module in _MOVED if name.startswith(module)), "")
    return _MOVED.get(old, "") + name.removeprefix(old)
