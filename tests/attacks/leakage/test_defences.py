import json
from pathlib import Path
from typing import Any

import pytest

from atoll.attacks.leakage.defences import Countermeasure, compare_defences, usual_defences, write_defences
from atoll.attacks.leakage.few_examples import FewExamples
from atoll.attacks.leakage.one_attack import AttackOptions, attack
from atoll.attacks.leakage.written import write_finding
from atoll.errors import ConfigError
from atoll.experiment import Experiment
from tests.support.leaking import BASE, federation

OPTIONS = AttackOptions("fc", victims=20, images=2, among=100)
TRANSFORMED: dict[str, Any] = {"transform": ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}]}


def test_the_same_attack_is_made_under_each_defence_and_the_same_experiment_is_run(tmp_path: Path) -> None:
    noise = {"name": "local_gaussian", "epsilon": 1.0, "delta": 1e-4}
    some = [
        Countermeasure("none"),
        Countermeasure("noise", {"transform": [*TRANSFORMED["transform"], noise]}),
        Countermeasure("wrong", {"transform": [noise]}),
    ]
    none, noisy, wrong = compare_defences(Experiment.parse(BASE), OPTIONS, some, tmp_path, "cpu")
    assert none.summary is not None
    assert noisy.summary is not None
    assert none.summary["identification"]["rate"] > 0.6 > 0.1 > noisy.summary["identification"]["rate"]
    assert none.summary["identification"] == attack(Experiment.parse(BASE), OPTIONS, "cpu").summary["identification"]
    assert 0 < none.utility <= 1
    assert "clip_l2" in wrong.refused
    page = write_defences([none, noisy, wrong], "mine", tmp_path).read_text()
    assert "http" not in page.replace("http://www.w3.org", "")
    assert "Leakage against utility" in page
    kept = json.loads((tmp_path / "defences.json").read_text())
    assert [one["name"] for one in kept] == ["none", "noise", "wrong"]
    assert (tmp_path / "defences.png").read_bytes()[:4] == b"\x89PNG"


def test_the_usual_defences_clip_at_the_median_and_give_clients_more_where_they_have_more() -> None:
    some = usual_defences(Experiment.parse({**BASE, "cohort": {"name": "fixed", "size": 10}}), OPTIONS, "cpu")
    names = [one.name for one in some]
    assert {"none", "clip", "secure sum", "top-k, 1%", "4 examples a client", "8 examples a client"} <= set(names)
    held = usual_defences(Experiment.parse(BASE), AttackOptions("fc", victims=5), "cpu")
    assert not [one for one in held if "examples a client" in one.name]
    with pytest.raises(ConfigError, match="has transforms"):
        usual_defences(Experiment.parse({**BASE, **TRANSFORMED}), OPTIONS, "cpu")


@pytest.mark.usefixtures("without_figures")
def test_an_attack_leaves_a_page_numbers_and_pictures(tmp_path: Path) -> None:
    finding = attack(Experiment.parse(BASE), OPTIONS, "cpu")
    page = write_finding(finding, "mine", tmp_path).read_text()
    assert "FC attack on mine" in page
    assert "What the attacker knows" in page
    assert "http" not in page
    kept = json.loads((tmp_path / "attack.json").read_text())
    assert kept["identification"] == json.loads(json.dumps(finding.summary["identification"]))
    assert (tmp_path / "reconstructions.npz").is_file()


def test_few_examples_are_some_of_each_clients_own() -> None:
    whole, few = federation(None).training, federation(3).training
    assert few.sizes.tolist() == [3] * 60
    assert all(set(few.of(c).tolist()) <= set(whole.of(c).tolist()) for c in range(60))
    assert few.left_out == len(whole.indices) - 180
    kept = FewExamples(BASE["partition"], 10_000).cut(whole, federation(None).server_key)
    assert kept.indices.tolist() == whole.indices.tolist()
