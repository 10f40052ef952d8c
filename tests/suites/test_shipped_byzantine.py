"""The suite of attacks against defences: blades' protocol, the right numbers for every share, and one tiny cell."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.errors import ConfigError
from atoll.experiment import Experiment, set_up
from atoll.suites import parse, prepare, read
from atoll.suites.expand import places
from atoll.suites.merge_tables import filled

SUITE = read("byzantine-grid")
FULL = {p.name: p for p in places(SUITE)}
SMALL: dict[str, Any] = {
    "title": "Small",
    "axes": ["malicious", "attack", "defence"],
    "worst_over": "attack",
    "base": {"rounds": 2, "data": "digits", "partition": {"name": "iid", "clients": 10}},
    "value": {
        "malicious": {"20 %": {"attack": {"share": 0.2}, "let": {"f": 2}}},
        "attack": {"alie": {"attack": {"name": "alie"}}},
        "defence": {"krum": {"reducer": {"name": "krum", "byzantine": "$f"}}},
    },
}


def changed(value: Any, *path: str) -> dict[str, Any]:
    suite = deepcopy(SMALL)
    table = suite
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value
    return suite


def test_the_full_size_is_blades_protocol() -> None:
    e = Experiment.parse(FULL["fmnist/30 %/ipm 100/multi_krum"].base)
    assert (e.rounds, e.local.batch, e.local.max_steps) == (2000, 64, 1)
    assert e.partition == {"name": "iid", "clients": 60}
    assert e.cohort == {"name": "everyone"}
    rate = e.algorithm["server_lr"]
    assert isinstance(rate, dict)
    assert (rate["start"], rate["every"], rate["factor"]) == (0.1, 1500, 0.1)
    shares = {p.path["malicious"] for p in FULL.values() if p.path["data"] == "fmnist"}
    assert shares == {f"{share} %" for share in (0, 5, 10, 15, 20, 25, 30)}
    assert FULL["fmnist/30 %/ipm 100/multi_krum"].seeds == (0, 1, 2, 3, 4)


@pytest.mark.parametrize(("share", "f"), [(0, 0), (5, 3), (10, 6), (15, 9), (20, 12), (25, 15), (30, 18)])
def test_a_defence_is_told_the_right_number(share: int, f: int) -> None:
    attack = "alie" if f else "nobody"
    at = f"fmnist/{share} %/{attack}"
    for defence in ("krum", "multi_krum", "dnc(1)", "dnc(1.5)", "nnm, trimmed_mean", "arc, geometric_median"):
        assert FULL[f"{at}/{defence}"].base["reducer"]["byzantine"] == f
    trimmed = FULL[f"{at}/trimmed_mean"].base["reducer"]["share"]
    assert int(trimmed * 60) == f
    assert FULL[f"{at}/nnm, trimmed_mean"].base["reducer"]["inner"]["share"] == trimmed
    assert round(FULL[f"{at}/mean"].base.get("attack", {}).get("share", 0.0) * 60) == f


def test_the_attackers_are_as_many_as_the_defence_is_told() -> None:
    base = FULL["digits/30 %/alie/krum"].base
    made = set_up(Experiment.parse({**base, "rounds": 1}), "cpu")
    assert made.attack is not None
    assert len(made.attack.ids) == base["reducer"]["byzantine"] == 18


def test_the_smoke_size_has_grids_and_settings_to_choose_from() -> None:
    smoke = places(SUITE.at("smoke"))
    assert {p.base["rounds"] for p in smoke} == {5}
    assert {p.path["data"] for p in smoke} == {"digits"}
    median = {p.path["attack"] for p in smoke if p.path["defence"] == "median"}
    assert median == {"nobody", "ipm 100", "alie", "fang_search"}
    assert sum(p.path["defence"].startswith("centred_clipping(") for p in smoke) == 6


def test_two_rounds_of_two_cells_are_measured_and_the_worst_of_them_is_in_the_results(tmp_path: Path) -> None:
    only = ["digits/30 %/ipm 100/median", "digits/30 %/alie/median"]
    done = atoll.bench.run(
        "byzantine-grid", out=tmp_path / "g", size="smoke", only=only, overrides=["rounds=2", "evaluate.every=2"]
    )
    assert done.status == "finished"
    assert done.results.worst_over == "attack"
    (grid,) = atoll.records.grids(done.results)
    assert set(grid.column("median")) == {"ipm 100", "alie"}


def test_a_run_that_diverges_is_counted_and_not_only_failed(tmp_path: Path) -> None:
    suite = changed({"mean": {"reducer": "mean"}}, "value", "defence")
    suite["value"]["attack"] = {"scaled": {"attack": {"name": "same_value", "value": 1e38}}}
    suite["base"] |= {"rounds": 3, "task": {"model": "linear"}, "local": {"max_steps": 1}, "engine": "vector"}
    suite["base"]["algorithm"] = {"name": "fedavg", "lr": 0.1}
    done = atoll.bench.run(parse(suite, "small"), out=tmp_path / "d", seeds=1)
    (cell,) = done.results.cells
    assert cell.runs == ()
    assert cell.diverged == 1


@pytest.mark.parametrize(
    ("suite", "said"),
    [
        (changed("defence", "worst_over"), "worst_over: 'defence' holds what is compared"),
        (changed("atack", "worst_over"), "Did you mean 'attack'?"),
        (changed({"f": "two"}, "value", "malicious", "20 %", "let"), r"value.malicious.20 %.let"),
    ],
)
def test_bad_names_are_refused_with_advice(suite: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(suite, "small")
    assert said in str(refused.value)


def test_a_number_that_nobody_says_is_refused() -> None:
    suite = parse(changed({"g": 2}, "value", "malicious", "20 %", "let"), "small")
    with pytest.raises(ConfigError, match=r"20 %/alie/krum: no value of it says let.f, which '\$f' asks for"):
        prepare(suite)
    assert filled(["$a", {"b": "$a"}, 3], {"a": 1}, "x") == [1, {"b": 1}, 3]
