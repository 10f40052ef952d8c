"""Guarantees of different units on one card: who is protected must be said, and is not ranked."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atoll.card import CardOptions, plan_card, run_card
from atoll.card.card_measures import Measured
from atoll.card.profiles import PROFILES
from atoll.card.score_card import ScoreCard, score
from atoll.card.scores import hidden

QUICK: dict[str, Any] = {
    "rounds": 1,
    "data": "digits",
    "partition": {"name": "iid", "clients": 8},
    "task": {"model": "linear"},
    "algorithm": {"name": "fedavg", "lr": 0.1},
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    folder = tmp_path_factory.mktemp("units")
    options = CardOptions(seeds=1, attacks=(), device="cpu")
    card = run_card(plan_card([("plain", QUICK)], [], Path(folder), options), Path(folder), options, "").card
    assert card is not None
    return card.measured[0]


def holding(plain: Measured, name: str, **claims: dict[str, Any]) -> Measured:
    records = {
        seed: replace(r, run={**r.run, "privacy": {k: {"holds": True, **c} for k, c in claims.items()}})
        for seed, r in plain.own.items()
    }
    return replace(plain, method=name, records={**plain.records, "own": records})


def guarantee(card: ScoreCard, method: str) -> float:
    part = next(p for p in card.scores[method]["privacy"].parts if p.name == "guarantee")
    return part.by_seed[0]


def test_a_clients_guarantee_counts_before_a_stronger_one_of_single_examples(plain: Measured) -> None:
    both = holding(plain, "both", client={"epsilon": 3.0, "delta": 1e-3}, example={"epsilon": 0.5, "delta": 1e-5})
    card = score("", PROFILES["atoll"], [both], (0,))
    assert guarantee(card, "both") == hidden(3.0, 1e-3)
    part = next(p for p in card.scores["both"]["privacy"].parts if p.name == "guarantee")
    assert "of a client" in part.title


def test_guarantees_of_different_units_are_not_ranked(plain: Measured) -> None:
    client = holding(plain, "a", client={"epsilon": 3.0, "delta": 1e-3})
    example = holding(plain, "b", example={"epsilon": 0.5, "delta": 1e-5})
    card = score("", PROFILES["atoll"], [client, example, replace(plain, method="c")], (0,))
    assert all("guarantee" not in card.scores[m]["privacy"].counted for m in "abc")
    assert any("guarantees are of different units (a: client, b: example)" in words for words in card.left_out)
    same = score("", PROFILES["atoll"], [client, replace(plain, method="c")], (0,))
    assert all("guarantee" in same.scores[m]["privacy"].counted for m in "ac")
    assert (guarantee(same, "a"), guarantee(same, "c")) == (hidden(3.0, 1e-3), 0.0)
