"""Every topology, and every algorithm with more than one kind of model, on two ranks: what one process has."""

import json
from pathlib import Path
from typing import Any

import pytest

from atoll import tree
from atoll.runs import Run
from tests.support.every_round import EVERY_ROUND, TIMED
from tests.support.on_ranks import alike, experiment, on_cpu, together
from tests.support.other_models import OTHER_MODELS

CLIP = ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}]
SECURE = {"protocol": "secagg", "threshold": 0.5, "dropout": 0.2, "seconds": {"client": 0.01, "server": 0.02}}
KINDS: dict[str, dict[str, Any]] = {
    **EVERY_ROUND,
    "gossip, timed": {"round": "gossip", "clock": TIMED},
    "hierarchical, timed, secure": {**EVERY_ROUND["hierarchical"], "clock": TIMED, "secure": SECURE, "transform": CLIP},
    "fedbuff, secure": {**EVERY_ROUND["fedbuff"], "secure": SECURE, "transform": CLIP},
    "fedbuff, residuals": {**EVERY_ROUND["fedbuff"], "transform": [{"name": "top_k", "share": 0.2}]},
    **OTHER_MODELS,
}

pytestmark = pytest.mark.slow


def all_runs(rank: int, folder: Path) -> None:
    """One after the other in the same processes; what this rank got of each goes into a file."""
    got = {name: tree.digest(on_cpu(experiment(**more), folder / name).params) for name, more in KINDS.items()}
    (folder / f"rank{rank}.json").write_text(json.dumps(got))


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("on two ranks")
    together(2, all_runs, folder)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_change_nothing_but_the_order_of_sums(kind: str, on_two: Path, tmp_path: Path) -> None:
    alone, run = on_cpu(experiment(**KINDS[kind]), tmp_path / "run"), Run(on_two / kind)
    alike(run, alone)
    assert not any("realigned" in entry for entry in run.history)
    assert [entry.get("clock") for entry in run.history] == [entry.get("clock") for entry in alone.history]
    digests = [json.loads((on_two / f"rank{rank}.json").read_text())[kind] for rank in range(2)]
    assert digests[0] == digests[1]
