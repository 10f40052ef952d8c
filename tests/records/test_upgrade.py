"""Names of the first version: refused where they are typed, understood where they were written."""

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import atoll
from atoll import tree
from atoll.core import Participation, setting_names
from atoll.errors import ConfigError, RecordError
from atoll.experiment import CATALOGUE, Experiment, schema
from atoll.privacy.run import LocalPrivacyTable
from atoll.records import RunFolder, SweepFolder, read_runs
from atoll.records.upgrade import RENAMED, experiment_digest, is_old, upgraded, upgraded_line
from atoll.runs import Run
from atoll.suites.sweeps.axes import expand
from tests.support.paths import GOLDEN

OLD = GOLDEN / "old_runs"
OPTIONS = [(owner, old, new) for owner, names in RENAMED.items() for old, new in names.items()]
SETTINGS = {  # of transforms, as lines of the first version named them: `names` of their classes at 19607cd
    "clip_l2": ["bound"],
    "clip_per_layer": ["bound"],
    "clip_l1": ["bound"],
    "adaptive_clip": ["start", "quantile", "rate", "count_share", "unit"],
    "gaussian_noise": ["multiplier", "bound"],
    "laplace_noise": ["multiplier", "bound"],
    "banded_noise": ["bound"],
    "tree_noise": ["bound"],
    "fixed_point": ["step"],
    "discrete_gaussian": ["multiplier", "bound"],
    "skellam": ["multiplier", "bound", "l1"],
    "local_gaussian": ["epsilon", "std"],
    "local_laplace": ["epsilon", "scale"],
    "privunit": ["epsilon", "bound", "lean", "above", "mean"],
    "approximate_local": ["epsilon", "std"],
    "weak_dp": ["bound", "std"],
    "nbafl": ["bound", "epsilon"],
}
BASE: dict[str, Any] = {
    "rounds": 2,
    "data": "digits",
    "partition": {"name": "iid", "clients": 4},
    "algorithm": {"name": "fedavg", "lr": 0.1},
}
OURS: dict[str, Any] = {  # what make.py asked for, in the names of today
    "transforms": [
        "equal_weights",
        {"name": "clip_l2", "max_norm": {"name": "cosine", "start": 0.5, "over": 6, "end": 0.1}},
        {"name": "gaussian_noise", "noise_multiplier": 0.3},
    ],
    "cohort": {"name": "cyclic", "size": 2, "min_separation": 3},
}


def placed(owner: str, option: str) -> tuple[dict[str, Any], str]:
    """An experiment that has the option, and where it stands."""
    if owner in CATALOGUE["transforms"]:
        return {**BASE, "transform": ["equal_weights", {"name": owner, option: 1.0}]}, f"transform.1.{option}"
    if owner in CATALOGUE["cohorts"]:
        return {**BASE, "cohort": {"name": owner, "size": 2, option: 2}}, f"cohort.{option}"
    return {**BASE, "local": {"privacy": {option: 1.0}}}, f"{owner}.{option}"


@pytest.mark.parametrize(("owner", "old", "new"), OPTIONS)
def test_an_old_name_is_refused_with_the_new_one(owner: str, old: str, new: str) -> None:
    raw, at = placed(owner, old)
    with pytest.raises(ConfigError) as e:
        Experiment.parse(raw)
    assert f"{at}: is called {new} now." in e.value.problems
    assert not [p for p in e.value.problems if f".{new}: is missing" in p]


@pytest.mark.parametrize(("owner", "old", "new"), OPTIONS)
def test_the_new_name_is_an_option_and_the_old_one_is_none(owner: str, old: str, new: str) -> None:
    builders = [CATALOGUE[kind][owner] for kind in ("transforms", "cohorts") if owner in CATALOGUE[kind]]
    known = schema(builders[0] if builders else LocalPrivacyTable)
    assert len(builders) == (owner != "local.privacy")
    assert new in known
    assert old not in known


@pytest.mark.parametrize(("owner", "old", "new"), OPTIONS)
def test_an_old_experiment_is_read_in_the_names_of_today(owner: str, old: str, new: str) -> None:
    (written, _), (wanted, _) = placed(owner, old), placed(owner, new)
    before = json.dumps(written)
    assert upgraded(written) == wanted
    assert upgraded(wanted) == wanted
    assert json.dumps(written) == before


def test_modules_that_moved_are_found_wherever_an_entry_stands() -> None:
    half = {"name": "atoll.attack.halves:Half", "of": {"name": "atoll.runs.given:clients", "digest": "x"}}
    found = upgraded({**BASE, "partition": half})["partition"]
    assert found["name"] == "atoll.attacks.membership.random_half:Half"
    assert found["of"] == {"name": "atoll.runs.python_inputs:clients", "digest": "x"}


def test_names_of_others_are_left_alone() -> None:
    mine = {**BASE, "label": "a bound", "transform": [{"name": "mine:Clip", "bound": 1.0, "multiplier": 2.0}]}
    assert upgraded(mine) == mine


def test_the_digest_is_that_of_the_experiment() -> None:
    experiment = Experiment.parse(BASE)
    assert experiment_digest(experiment.complete()) == experiment.digest()


def test_a_line_of_an_old_record_is_read_in_the_names_of_today() -> None:
    line = RunFolder(OLD / "half").record()[0]
    assert Participation(**line["cohort"]["how"]) == Participation("cyclic", 6, size=2, min_separation=3)
    assert line["settings"] == {
        "algorithm.lr": 0.1,
        "algorithm.server_lr": 1.0,
        "chain.transforms.1.max_norm": 0.5,
        "chain.transforms.2.noise_multiplier": 0.3,
        "chain.transforms.2.sensitivity": 0.5,
    }
    assert upgraded_line(line, RunFolder(OLD / "half").info["experiment"]) == line
    assert not is_old(line)


@pytest.mark.parametrize("name", [name for name in CATALOGUE["transforms"] if name in SETTINGS])
def test_a_setting_of_an_old_line_is_one_that_the_transform_has(name: str) -> None:
    builder = CATALOGUE["transforms"][name]
    experiment = {"transform": [{"name": "equal_weights"}, {"name": name}], "algorithm": {"name": "fedavg"}}
    written = {"cohort": {"how": {}}, "settings": {f"chain.layers.1.{old}": 1.0 for old in SETTINGS[name]}}
    assert is_old(written)
    found = upgraded_line(written, experiment)["settings"]
    today = [f"chain.transforms.1.{new}" for new in setting_names(builder)]  # type: ignore[arg-type]
    assert list(found) == [setting for setting in today if setting in found]
    assert set(today) - set(found) <= {"chain.transforms.1.sensitivity"}  # which local mechanisms did not say then


@pytest.mark.parametrize(("name", "upgrades"), [("fedadam", True), ("mine:Own", False)])
def test_settings_of_a_server_optimizer_stand_where_it_is_now(name: str, upgrades: bool) -> None:
    line = {"cohort": {"how": {}}, "settings": {"algorithm.lr": 0.1, "algorithm.b1": 0.9}}
    found = upgraded_line(line, {"transform": [], "algorithm": {"name": name}})["settings"]
    assert found == {"algorithm.lr": 0.1, "algorithm.server.b1" if upgrades else "algorithm.b1": 0.9}


def test_an_old_run_that_was_resumed_has_one_spelling_in_all_lines(tmp_path: Path) -> None:
    shutil.copytree(OLD / "half", tmp_path / "run")
    runpy.run_path(str(OLD / "make.py"))["simulate"](tmp_path / "run", OURS, resume=True)
    written = [json.loads(line) for line in (tmp_path / "run" / "record.jsonl").read_text().splitlines()]
    assert len(written) == 6
    assert len({tuple(line["settings"]) for line in written}) == 1
    assert len({tuple(line["cohort"]["how"]) for line in written}) == 1


def test_an_old_run_is_resumed_to_the_model_that_it_would_have_had(tmp_path: Path) -> None:
    shutil.copytree(OLD / "half", tmp_path / "run")
    simulate = runpy.run_path(str(OLD / "make.py"))["simulate"]
    whole, run = json.loads((OLD / "whole.json").read_text()), simulate(tmp_path / "run", OURS, resume=True)
    assert [entry["round"] for entry in run.history] == [1, 2, 3, 4, 5, 6]
    for name, values in whole["params"].items():
        assert torch.allclose(run.params[name], torch.tensor(values), rtol=1e-5, atol=1e-7)
    if whole["cpu"] == run.info["hardware"]["cpu"]:  # another one may round otherwise
        assert tree.digest(run.params) == whole["digest"]


def test_an_old_run_that_was_resumed_has_spent_what_a_whole_one_has(tmp_path: Path) -> None:
    shutil.copytree(OLD / "half", tmp_path / "half")
    simulate = runpy.run_path(str(OLD / "make.py"))["simulate"]
    resumed, whole = simulate(tmp_path / "half", OURS, resume=True), simulate(tmp_path / "whole", OURS)
    assert resumed.info["privacy"] == whole.info["privacy"]
    assert resumed.info["experiment"] == whole.info["experiment"]
    assert resumed.info["digest"] == whole.info["digest"]


def test_another_experiment_does_not_go_on_with_an_old_run(tmp_path: Path) -> None:
    shutil.copytree(OLD / "half", tmp_path / "run")
    simulate = runpy.run_path(str(OLD / "make.py"))["simulate"]
    other = {**OURS, "cohort": {"name": "cyclic", "size": 1, "min_separation": 3}}
    with pytest.raises(RecordError, match=r"holds another experiment \(cohort\.size: 2, yours 1\)"):
        simulate(tmp_path / "run", other, resume=True)


def test_runs_and_reports_read_an_old_folder_in_the_names_of_today() -> None:
    for experiment in (Run(OLD / "half").info["experiment"], read_runs([OLD / "half"])[0].experiment):
        assert experiment["cohort"] == OURS["cohort"]
        assert experiment["transform"][1:] == OURS["transforms"][1:]
        assert experiment["data"]["name"] == "atoll.runs.python_inputs:arrays"


def test_an_old_cell_of_a_sweep_is_found_again(tmp_path: Path) -> None:
    """Its folder and sweep.json were written with the old names and the old digest."""
    noise = {"name": "gaussian_noise", "noise_multiplier": 1.0}
    chain = ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}, noise]
    (cell,) = expand({**BASE, "transform": chain, "sweep": {"transform.2.noise_multiplier": [0.5]}})
    run = atoll.run(cell.experiment, tmp_path / "cells" / "multiplier=0.5-old")
    info = {**run.info, "experiment": _old(run.info["experiment"])}
    (run.folder / "run.json").write_text(json.dumps({**info, "digest": experiment_digest(info["experiment"])}))
    listed = {
        "name": "multiplier=0.5",
        "digest": experiment_digest(info["experiment"]),
        "folder": "cells/multiplier=0.5-old",
    }
    content = {"format": 1, "axes": {}, "cells": [{**listed, "state": "finished"}], "others": []}
    (tmp_path / "sweep.json").write_text(json.dumps(content))

    folder = SweepFolder(tmp_path)
    assert folder.place(cell) == run.folder
    assert folder.done(cell) == "finished"
    folder.write({}, [cell], {cell.name: "finished"})
    assert folder.info()["others"] == []
    assert RunFolder(run.folder).info["digest"] == cell.digest


def _old(experiment: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(experiment)
    return dict(json.loads(text.replace('"noise_multiplier"', '"multiplier"').replace('"max_norm"', '"bound"')))


def test_the_graph_of_an_old_gossip_round_becomes_an_entry() -> None:
    old = {"name": "gossip", "graph": "random", "probability": 0.4}
    entry = {"name": "random", "seed": 0, "probability": 0.4}
    assert upgraded({"round": old}) == {"round": {"name": "gossip", "graph": entry, "weights": "metropolis"}}
    ring = {"name": "gossip", "graph": "ring", "probability": 0.1}
    assert upgraded({"round": ring}) == {
        "round": {"name": "gossip", "graph": {"name": "ring"}, "weights": "metropolis"}
    }
    today = {"round": {"name": "gossip", "graph": {"name": "random", "probability": 0.4}}}
    assert upgraded(today) == today
