"""More rounds for a run: bit for bit what they would have been at first, or refused with the reason."""

from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll import tree
from atoll.errors import RecordError
from atoll.runs import Run
from tests.support.shell import Shell, shell

GAUSSIAN = ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}, {"name": "gaussian_noise", "noise_multiplier": 1.0}]


@pytest.fixture
def sh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return shell(tmp_path, monkeypatch, capsys)


def experiment(rounds: int, **changes: Any) -> dict[str, Any]:
    return {
        "rounds": rounds,
        "data": "digits",
        "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.5},
        "cohort": {"name": "fixed", "size": 4},
        "local": {"max_steps": 3},
        "task": {"model": {"name": "mlp", "widths": [16], "dropout": 0.3}},
        "algorithm": {"name": "scaffold", "lr": 0.1},
        "engine": "vector",
        "evaluate": {"every": 2, "holdout": 0.2},
        "checkpoint": {"every": 2},
        **changes,
    }


def same(a: Run, b: Run) -> None:
    assert tree.digest(a.params) == tree.digest(b.params)
    assert (a.best, tree.digest(a.best_params)) == (b.best, tree.digest(b.best_params))
    bare = [[{k: v for k, v in e.items() if k != "seconds"} for e in r.history] for r in (a, b)]
    assert bare[0] == bare[1]
    assert a.info["experiment"] == b.info["experiment"]
    assert a.info["digest"] == b.info["digest"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm": {"name": "fedavg", "lr": {"name": "step", "start": 0.2, "every": 3}}},
        {"stop": {"patience": 9, "metric": "loss"}},
        {"algorithm": {"name": "fedadam", "lr": 0.05}, "transform": [{"name": "top_k", "share": 0.3}]},
    ],
)
def test_a_finished_run_that_gets_more_rounds_is_what_it_would_have_been(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    whole = atoll.run(experiment(10, **changes), tmp_path / "whole")
    short = atoll.run(experiment(4, **changes), tmp_path / "short")
    assert (short.status, len(short.history)) == ("finished", 4)
    longer = atoll.run(experiment(10, **changes), tmp_path / "short", resume=True)
    same(longer, whole)
    assert longer.info["extended"] == [4]


def test_a_private_run_spends_what_its_rounds_spend(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"transform": GAUSSIAN, "algorithm": {"name": "fedavg", "lr": 0.1}}
    whole = atoll.run(experiment(6, **changes), tmp_path / "whole")
    atoll.run(experiment(4, **changes), tmp_path / "short")
    longer = atoll.run(experiment(6, **changes), tmp_path / "short", resume=True)
    assert tree.digest(longer.params) == tree.digest(whole.params)
    assert longer.info["privacy"] == whole.info["privacy"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "calibrated noise": (
        {"transform": [*GAUSSIAN[:2], {"name": "gaussian_noise", "epsilon": 8.0, "delta": 1e-2}]},
        "the noise was chosen for epsilon 8 after 4 rounds",
    ),
    "banded noise": (
        {
            "transform": [*GAUSSIAN[:2], {"name": "banded_noise", "noise_multiplier": 1.0}],
            "cohort": {"name": "cyclic", "size": 2, "min_separation": 3},
        },
        "banded_noise was made for 4 rounds",
    ),
    "a tree": (
        {"transform": [*GAUSSIAN[:2], {"name": "tree_noise", "noise_multiplier": 1.0}], "cohort": "everyone"},
        "tree_noise was made for 4 rounds",
    ),
    "a cosine over the run": (
        {"algorithm": {"name": "fedavg", "lr": {"name": "cosine", "start": 0.1, "over": 4}}},
        "the cosine schedule ends with round 4",
    ),
    "a last look that decides": (
        {"evaluate": {"every": 3}, "stop": {"patience": 5}},
        "round 4 was measured because it was the last",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_depends_on_the_number_of_rounds_is_refused_with_the_reason(tmp_path: Path, kind: str) -> None:
    changes, why = REFUSED[kind]
    changes = {"algorithm": {"name": "fedavg", "lr": 0.1}, **changes}
    atoll.run(experiment(4, **changes), tmp_path / "run")
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    with pytest.raises(RecordError, match=f"was begun with rounds = 4, and cannot have 10: {why}"):
        atoll.run(experiment(10, **changes), tmp_path / "run", resume=True)
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()} == before


def test_fewer_rounds_than_were_made_are_refused(tmp_path: Path) -> None:
    atoll.run(experiment(4), tmp_path / "run")
    with pytest.raises(RecordError, match="has made 4 rounds already, and you ask for 2"):
        atoll.run(experiment(2), tmp_path / "run", resume=True)


def test_a_run_whose_checkpoint_is_gone_is_not_begun_anew(tmp_path: Path) -> None:
    atoll.run(experiment(4), tmp_path / "run")
    (tmp_path / "run" / "checkpoint.pt").unlink()
    with pytest.raises(RecordError, match="its checkpoint is gone"):
        atoll.run(experiment(6), tmp_path / "run", resume=True)


def test_the_command_finds_the_run_that_is_to_go_on(sh: Shell) -> None:
    whole = atoll.Experiment.parse(experiment(2))
    Path("e.toml").write_text(whole.to_toml())
    assert sh("run e.toml").code == 0
    (folder,) = Path("runs").iterdir()
    assert sh("run e.toml --resume --rounds 4").code == 0
    assert [p.name for p in Path("runs").iterdir()] == [folder.name]
    assert len(Run(folder).history) == 4
