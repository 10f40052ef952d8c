"""What a run certifies, against votes counted by hand, and where it is shown."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import atoll
from atoll.analysis.certificate import certify
from atoll.cli.main import app
from atoll.errors import ConfigError
from atoll.report import write
from atoll.stats import BackdoorThreat, certified_radius, vote_bounds

BASE: dict[str, Any] = {
    "rounds": 3,
    "data": "digits",
    "partition": {"name": "iid", "clients": 4},
    "task": {"model": "logistic"},
    "algorithm": {"name": "fedavg", "lr": 0.5},
    "checkpoint": {"every": 0},
}


def run(folder: Path, **crfl: Any) -> Path:
    table = {"max_norm": 4.0, "std": 0.02, "votes": 100, "rate": 0.02, **crfl}
    atoll.run({**BASE, "server": {"crfl": table}}, out=folder)
    return folder


def test_without_noise_to_speak_of_the_vote_is_the_clipped_model_and_unanimous(tmp_path: Path) -> None:
    folder = run(tmp_path / "quiet", std=1e-6)
    found = certify(folder)
    last = json.loads((folder / "record.jsonl").read_text().splitlines()[-1])
    assert found["accuracy"] == pytest.approx(last["clipped"]["accuracy"])
    radius = certified_radius(*vote_bounds(100, 0, 100, 0.001), 4.0, 1e-6, 2, BackdoorThreat(1, 0.02))
    assert found["curve"][-1] == pytest.approx([radius, found["accuracy"]])


def test_a_curve_falls_and_starts_at_most_at_the_accuracy_of_the_vote(tmp_path: Path) -> None:
    found = certify(run(tmp_path / "noisy", std=0.06))
    radii, shares = np.array(found["curve"]).T
    assert (np.diff(radii) > 0).all()
    assert (np.diff(shares) <= 0).all()
    assert shares[0] == pytest.approx(found["accuracy"])  # a radius of 0 asks for nothing
    assert shares[1] < found["accuracy"]
    assert certify(tmp_path / "noisy")["curve"] == found["curve"]  # votes are drawn from a seed


def test_more_noise_certifies_larger_backdoors_of_fewer_examples(tmp_path: Path) -> None:
    low, high = (certify(run(tmp_path / str(std), std=std)) for std in (0.01, 0.06))
    assert high["curve"][-1][0] > low["curve"][-1][0]
    assert high["curve"][-1][1] < low["curve"][-1][1]


def test_a_report_shows_it(tmp_path: Path) -> None:
    folder = run(tmp_path / "shown")
    assert "Certified accuracy" not in write([folder], tmp_path / "without.html").read_text()
    certify(folder, votes=50)
    page = write([folder], tmp_path / "with.html", figures=["png"]).read_text()
    assert "Certificate" in page
    assert "1 attacker, rate 0.02, in round 1; 50 votes" in page
    assert (tmp_path / "with-certified.png").stat().st_size > 1000


def test_what_cannot_be_certified_is_refused(tmp_path: Path) -> None:
    atoll.run(BASE, out=tmp_path / "plain")
    with pytest.raises(ConfigError, match=r"was run without server\.crfl"):
        certify(tmp_path / "plain")
    folder = run(tmp_path / "crfl")
    with pytest.raises(ConfigError, match="--votes: must be 1 or more"):
        certify(folder, votes=0)


def attacked(folder: Path, **attack: Any) -> Path:
    table = {"crfl": {"max_norm": 4.0, "std": 0.02, "votes": 100, "rate": 0.02, "attackers": 2}}
    entry = {"name": "backdoor", "boost": 1, **attack}
    atoll.run({**BASE, "server": table, "attack": entry}, out=folder)
    return folder


def test_more_attackers_than_were_assumed_are_not_certified(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"attackers = 2, and 3 clients attack"):
        certify(attacked(tmp_path / "many", clients=[0, 1, 2]))


def test_rounds_count_from_the_last_attacked_one_and_several_are_warned_of(tmp_path: Path) -> None:
    one = certify(attacked(tmp_path / "one", clients=[0], start=2, stop=2))
    assert (one["attacked_round"], one["rounds_after"], one["notes"]) == (2, 1, [])
    more = certify(attacked(tmp_path / "more", clients=[0, 1], start=1, stop=2))
    assert (more["attacked_round"], more["rounds_after"]) == (2, 1)
    assert "2 rounds" in more["notes"][0]
    endless = certify(attacked(tmp_path / "endless", clients=[0]))
    assert (endless["attacked_round"], endless["rounds_after"]) == (3, 0)


def test_the_command_says_what_it_assumes(tmp_path: Path) -> None:
    folder = attacked(tmp_path / "more", clients=[0], start=1, stop=2)
    said = " ".join(CliRunner().invoke(app, ["certify", str(folder)]).output.split())
    assert "at most 2 attackers in round 2, each of rate 0.02, and a Lipschitz constant of 1" in said
    assert "attacked 2 rounds" in said


def test_resuming_keeps_the_model_without_noise(tmp_path: Path) -> None:
    table = {"crfl": {"max_norm": 4.0, "std": 0.1}}
    whole = {**BASE, "server": table, "checkpoint": {"every": 1}}
    atoll.run({**whole, "rounds": 3}, out=tmp_path / "whole")
    atoll.run({**whole, "rounds": 2}, out=tmp_path / "parts")
    atoll.run({**whole, "rounds": 3}, out=tmp_path / "parts", resume=True)
    first, second = (torch.load(tmp_path / name / "clipped.pt", weights_only=True) for name in ("whole", "parts"))
    assert all(torch.equal(first[k], second[k]) for k in first)


def test_where_noise_drowns_the_model_nothing_is_certified_and_that_is_said(tmp_path: Path) -> None:
    found = certify(run(tmp_path / "drowned", std=5.0))
    assert len(found["curve"]) == 1
    assert found["curve"][0][0] == 0.0
