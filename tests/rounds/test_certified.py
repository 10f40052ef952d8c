"""CRFL: the model after a round is clipped and noisy, and the record says what that certifies."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import atoll
from atoll import rng, tree
from atoll.errors import ConfigError
from atoll.rounds import vote_counts
from atoll.stats import BackdoorThreat, certified_radius, vote_bounds

BASE: dict[str, Any] = {
    "rounds": 3,
    "data": "digits",
    "partition": {"name": "iid", "clients": 4},
    "task": {"model": "logistic"},
    "algorithm": {"name": "fedavg", "lr": 0.5},
}


def final(folder: Path, **more: Any) -> tuple[Any, list[dict[str, Any]]]:
    run = atoll.run({**BASE, **more}, out=folder)
    return run.params, [json.loads(line) for line in (folder / "record.jsonl").read_text().splitlines()]


def test_the_model_is_no_longer_than_the_bound_but_for_the_noise(tmp_path: Path) -> None:
    plain, _ = final(tmp_path / "plain")
    params, lines = final(tmp_path / "crfl", server={"crfl": {"max_norm": 0.5, "std": 1e-6, "votes": 200}})
    assert float(tree.norm(plain)) > 0.6
    assert float(tree.norm(params)) == pytest.approx(0.5, rel=1e-3)
    radii = [line["diagnostics"]["crfl"]["radius"] for line in lines]
    bounds = vote_bounds(200, 0, 200, 0.001)
    assert radii == pytest.approx([certified_radius(*bounds, 0.5, 1e-6, t, BackdoorThreat(1, 1.0)) for t in range(3)])


def test_noise_has_its_deviation_and_no_bound_and_no_noise_change_little(tmp_path: Path) -> None:
    plain, _ = final(tmp_path / "plain", rounds=1)
    noisy, _ = final(tmp_path / "noisy", rounds=1, server={"crfl": {"max_norm": 1e6, "std": 0.1}})
    added = torch.cat([x.flatten() for x in tree.leaves(tree.sub(noisy, plain))])
    assert float(added.std()) == pytest.approx(0.1, rel=0.1)
    quiet, _ = final(tmp_path / "quiet", rounds=1, server={"crfl": {"max_norm": 1e6, "std": 1e-9}})
    assert float(tree.norm(tree.sub(quiet, plain))) < 1e-5


def test_a_round_without_a_server_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"server\.crfl: clips the server's model"):
        atoll.run({**BASE, "round": {"name": "gossip"}, "server": {"crfl": {"max_norm": 1.0, "std": 0.1}}})


def test_votes_of_noisy_models_by_hand() -> None:
    params = {"w": torch.tensor([2.0, 0.0, -0.1])}
    votes = vote_counts(lambda p: (p["w"] > 0).long(), params, 0.5, 400, 3, rng.key("votes"))
    assert votes.sum(1).tolist() == [400, 400, 400]
    assert votes[0].tolist() == [0, 400, 0]
    assert abs(int(votes[1, 0]) - 200) < 40  # a coin
    assert int(votes[2, 0]) > 200


def test_the_model_without_its_last_noise_is_kept_beside_the_other(tmp_path: Path) -> None:
    final(tmp_path / "crfl", server={"crfl": {"max_norm": 0.5, "std": 0.3, "votes": 200}})
    clipped, noisy = (torch.load(tmp_path / "crfl" / name, weights_only=True) for name in ("clipped.pt", "model.pt"))
    length = torch.cat([x.flatten() for x in clipped.values()]).norm()
    assert float(length) == pytest.approx(0.5, rel=1e-5)
    added = torch.cat([(noisy[k] - clipped[k]).flatten() for k in clipped])
    assert float(added.std()) == pytest.approx(0.3, rel=0.1)
