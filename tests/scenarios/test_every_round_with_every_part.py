"""`[round]` switches the topology, and every other part of a file goes on working or is refused with the reason."""

from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.errors import ConfigError
from atoll.rounds import ROUNDS

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
OPTIONS: dict[str, dict[str, Any]] = {
    "asynchronous": {"concurrency": 6, "buffer": 3},
    "fedbuff": {"concurrency": 6, "buffer": 3},
    "fedasync": {"concurrency": 6},
    "hierarchical": {"edges": [2]},
}
TIMED = {"seconds_per_step": 0.01, "devices": "fedeval"}
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
WORK_EVERYWHERE = {"nothing", "cohort", "poisson", "noise of clients", "label_flip", "held out", "ditto", "loop"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUNDS)
def test_every_part_of_a_file_goes_with_a_round_to_the_same_bits_after_a_stop_or_is_refused(name, tmp_path) -> None:
    """Whatever is no refusal of ours (a crash deep inside, say) fails."""
    works, refused = set(), {}
    for part, more in PARTS.items():
        file = {"round": {"name": name, **OPTIONS.get(name, {})}, **GIVEN, **more}
        if name in ("asynchronous", "fedbuff", "fedasync"):
            file.setdefault("clock", TIMED)
        try:
            whole = atoll.run(file, tmp_path / part / "whole")
        except ConfigError as e:
            refused[part] = str(e)
            continue
        again = stopped_and_resumed(file, tmp_path / part / "cut")
        assert [(h["model"], h["bytes"]) for h in again.history] == [(h["model"], h["bytes"]) for h in whole.history]
        works.add(part)
    assert all(": " in why and why.endswith((".", ")")) for why in refused.values()), refused
    assert WORK_EVERYWHERE - TOLD.get(name, set()) <= works, refused


TOLD = {"ifca": {"noise of clients"}, "hypcluster": {"noise of clients"}}  # clients tell which model fits them


def stopped_and_resumed(file: dict[str, Any], folder: Path) -> atoll.Run:
    def stop(done: int, rounds: int, entry: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atoll.run(file, folder, watch=stop)
    return atoll.run(file, folder, resume=True)
