"""What `atoll check` says of a run's bytes is what its record counts in the end."""

import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import atoll
from atoll.cli.check import estimate
from atoll.experiment import Experiment

PHONES = {"seconds_per_step": 0.1, "devices": "phones"}
KINDS: dict[str, dict[str, Any]] = {
    "one server": {},
    "differences to who was there": {"broadcast": ["half"], "cohort": {"name": "fixed", "size": 4}},
    "one shot, all": {"round": "one_shot", "cohort": "everyone"},
    "one shot, some at a time": {"round": "one_shot"},
    "answers from the second time on": {
        "task": {"model": {"name": "gkt", "features": 4, "widths": [8]}},
        "algorithm": {"name": "fedgkt", "lr": 0.1},
    },
    "whoever a coin says": {"cohort": {"name": "poisson", "size": 3}},
    "clients that are lost": {"cohort": "everyone", "clock": {**PHONES, "dropout": 0.5, "dropout_moment": "training"}},
    "clients that are nearly all lost": {"cohort": "everyone", "clock": {**PHONES, "dropout": 0.9}},
    "the first of more": {"clock": {**PHONES, "over_selection": 1.8}, "cohort": {"name": "fixed", "size": 3}},
    "a deadline, and nobody there in time": {"clock": {**PHONES, "deadline": 0.05}, "cohort": "everyone"},
    "answers to whoever is not lost": {
        "task": {"model": {"name": "gkt", "features": 4, "widths": [8]}},
        "algorithm": {"name": "fedgkt", "lr": 0.1},
        "clock": {**PHONES, "dropout": 0.4},
        "local": {"batch": 64},  # all that a client has, every time
        "cohort": "everyone",
    },
    "differences, and clients that are lost": {
        "broadcast": ["qsgd"],
        "transform": ["qsgd"],
        "cohort": "everyone",
        "clock": {**PHONES, "dropout": 0.3},
    },
    "differences to the first of more": {
        "broadcast": ["half"],
        "cohort": {"name": "fixed", "size": 3},
        "clock": {**PHONES, "over_selection": 1.8},
    },
    "whoever comes first, and some are lost": {
        "round": {"name": "fedbuff", "concurrency": 5, "buffer": 2},
        "cohort": "everyone",
        "clock": {**PHONES, "dropout": 0.5},
    },
    "parts of a model, to some of those who hold them": {
        "task": {"model": "mlp"},
        "algorithm": {"name": "heterofl", "lr": 0.1},
        "cohort": {"name": "poisson", "size": 3},
    },
}
VARYING: dict[str, dict[str, Any]] = {
    "without a clock": {"transform": ["qsgd", "entropy"]},
    "clients that stay silent": {"transform": [{"name": "relevance", "threshold": 0.6}]},
    "a clock that waits for all": {"transform": ["qsgd", "entropy"], "clock": PHONES},
    "differences to the first of more, a coder": {
        "broadcast": [{"name": "qsgd", "levels": 1}, "entropy"],
        "cohort": {"name": "fixed", "size": 3},
        "clock": {**PHONES, "over_selection": 1.8},
    },
    "positions, the first of more, a deadline": {
        "broadcast": [{"name": "top_k", "share": 0.05}],
        "cohort": {"name": "fixed", "size": 3},
        "clock": {**PHONES, "over_selection": 1.4, "deadline": 5.0},
    },
}


def file(**changes: Any) -> dict[str, Any]:
    return {
        "rounds": 4,
        "data": "digits",
        "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.5},
        "cohort": {"name": "fixed", "size": 2},
        "task": {"model": "linear"},
        "algorithm": {"name": "fedavg", "lr": 0.1},
        "local": {"batch": 32, "max_steps": 2},
        "engine": "loop",
        "evaluate": {"every": 4, "clients": 0},
        **changes,
    }


def said(given: dict[str, Any], fact: str = "bytes") -> str:
    console = Console(record=True, width=300)
    estimate(Experiment.parse(given), "cpu", console)
    (line,) = (x.strip() for x in console.export_text().splitlines() if x.strip().startswith(fact))
    return line


def recorded(given: dict[str, Any], folder: Path) -> list[dict[str, int]]:
    return [line["bytes"] for line in atoll.run(given, folder).history]


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_all_rounds_are_those_that_the_record_counts(kind: str, tmp_path: Path) -> None:
    given = file(**KINDS[kind])
    words, lines = said(given), recorded(given, tmp_path / "run")
    first, up, down = lines[0], sum(x["up"] for x in lines), sum(x["down"] for x in lines)
    assert words.endswith(f", {up / 1e6:,.3g} and {down / 1e6:,.3g} MB for all 4")
    assert f"{first['up'] / 1e6:,.3g} MB up and {first['down'] / 1e6:,.3g} MB down" in words
    assert ("a round" if all(x == first for x in lines) else "in the first round") in words


@pytest.mark.parametrize("kind", VARYING)
def test_where_lengths_depend_on_numbers_no_more_bytes_are_recorded_than_were_said(kind: str, tmp_path: Path) -> None:
    given = file(**VARYING[kind])
    words, lines = said(given), recorded(given, tmp_path / "run")
    match = re.search(r"in the first round, at most ([\d.,]+) and ([\d.,]+) MB for all 4$", words)
    assert match is not None, words
    for most, way in zip(match.groups(), ("up", "down"), strict=True):
        spent = sum(x[way] for x in lines) / 1e6
        assert 0.2 * float(most) < spent <= 1.005 * float(most)  # as printed: three digits
