"""`[round]` switches the topology, and every other part of a file goes on working or is refused with the reason.

So it is with methods whose clients train other models than one that all of them average.
"""

from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.errors import ConfigError
from tests.support.every_round import EVERY_ROUND, TIMED
from tests.support.other_models import OTHER_MODELS

GIVEN: dict[str, Any] = {
    "rounds": 2,
    "data": "digits",
    "partition": {"name": "dirichlet", "alpha": 0.5, "clients": 8},
    "local": {"batch": 32, "max_steps": 2},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "task": {"model": {"name": "mlp", "widths": [4]}},
    "engine": "vector",
    "checkpoint": {"every": 1},
    "evaluate": {"clients": 0},
}
CLIP = ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}]
PARTS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "clock": {"clock": TIMED},
    "deadline": {"clock": {**TIMED, "deadline": 0.5, "dropout": 0.2}},
    "cohort": {"cohort": {"name": "fixed", "size": 4}},
    "poisson": {"cohort": {"name": "poisson", "probability": 0.5}},
    "top_k": {"transform": [{"name": "top_k", "share": 0.1}]},
    "ternary, entropy": {"transform": [{"name": "ternary", "share": 0.1}, "entropy"]},
    "noise on the sum": {"transform": [*CLIP, {"name": "gaussian_noise", "noise_multiplier": 1.0}]},
    "noise of clients": {"transform": [*CLIP, {"name": "local_gaussian", "epsilon": 1.0, "delta": 1e-3}]},
    "dp-sgd": {"local": {**GIVEN["local"], "privacy": {"max_norm": 1.0, "noise_multiplier": 1.0}}},
    "secure": {"secure": {"protocol": "secagg", "threshold": 4}, "transform": CLIP},
    "broadcast": {"broadcast": ["half"]},
    "sign_flip": {"attack": {"name": "sign_flip", "share": 0.25}},
    "alie": {"attack": {"name": "alie", "share": 0.25}, "reducer": "median"},
    "label_flip": {"attack": {"name": "label_flip", "share": 0.25}},
    "median": {"reducer": "median"},
    "root data": {"reducer": "fltrust", "server": {"root": 0.1}},
    "ema": {"server": {"ema": 0.9}},
    "held out": {"evaluate": {"holdout": 0.2}},
    "scaffold": {"algorithm": {"name": "scaffold", "lr": 0.1}},
    "fedadam": {"algorithm": {"name": "fedadam", "lr": 0.1}},
    "ditto": {"algorithm": {"name": "ditto", "lr": 0.1}},
    "fedrep": {"algorithm": {"name": "fedrep", "lr": 0.1}},
    "loop": {"engine": "loop"},
}
NOT_OF_A_METHOD = {name for name, more in PARTS.items() if "algorithm" in more or "round" in more}
WORK_EVERYWHERE = {"nothing", "cohort", "poisson", "noise of clients", "label_flip", "held out", "ditto", "loop"}


TOLD = {"ifca": {"noise of clients"}, "hypcluster": {"noise of clients"}}  # clients tell which model fits them


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY_ROUND)
def test_every_part_of_a_file_goes_with_a_round_to_the_same_bits_after_a_stop_or_is_refused(name, tmp_path) -> None:
    works, refused = tried({part: {**GIVEN, **EVERY_ROUND[name], **more} for part, more in PARTS.items()}, tmp_path)
    assert WORK_EVERYWHERE - TOLD.get(name, set()) <= works, refused


# What clients of a method say beside updates, or instead of them, no transform of updates covers.
ONLY_UPDATES = {"nothing", "clock", "cohort", "poisson", "held out", "loop"}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHER_MODELS)
def test_every_part_of_a_file_goes_with_other_models_to_the_same_bits_after_a_stop_or_is_refused(
    name, tmp_path
) -> None:
    parts = {part: more for part, more in PARTS.items() if part not in NOT_OF_A_METHOD}
    works, refused = tried({part: merged(OTHER_MODELS[name], more) for part, more in parts.items()}, tmp_path)
    assert works >= ONLY_UPDATES, refused


def merged(method: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """The file of a method with one more part; what both say of a server stands side by side."""
    server = {**method.get("server", {}), **more.get("server", {})}
    return {**GIVEN, **method, **more, **({"server": server} if server else {})}


def tried(files: dict[str, dict[str, Any]], folder: Path) -> tuple[set[str], dict[str, str]]:
    """Which run, and go on to the same bits after a stop, and why the others are refused.

    Whatever is no refusal of ours (a crash deep inside, say) fails.
    """
    works, refused = set(), {}
    for part, file in files.items():
        try:
            whole = atoll.run(file, folder / part / "whole")
        except ConfigError as e:
            refused[part] = str(e)
            continue
        again = stopped_and_resumed(file, folder / part / "cut")
        assert [(h["model"], h["bytes"]) for h in again.history] == [(h["model"], h["bytes"]) for h in whole.history]
        works.add(part)
    assert all(": " in why and why.endswith((".", ")")) for why in refused.values()), refused
    return works, refused


def stopped_and_resumed(file: dict[str, Any], folder: Path) -> atoll.Run:
    def stop(done: int, rounds: int, entry: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atoll.run(file, folder, watch=stop)
    return atoll.run(file, folder, resume=True)
