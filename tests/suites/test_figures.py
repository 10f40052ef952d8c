"""Figures that a suite declares: what they are of, what is done again, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from atoll.card import suite_card_options, suite_sources
from atoll.errors import ConfigError
from atoll.experiment import Experiment
from atoll.suites import Suite, cells_at, draw_leakage, parse, planned, read

RAW: dict[str, Any] = {
    "title": "A small one",
    "axes": ["data", "algorithm"],
    "base": {
        "rounds": 2,
        "partition": {"name": "iid", "clients": 20},
        "task": {"model": {"name": "mlp", "widths": [8]}},
    },
    "value": {
        "data": {"digits": {"data": "digits"}},
        "algorithm": {
            "fedavg": {"algorithm": {"name": "fedavg", "lr": 0.1}},
            "fedsgd": {"algorithm": {"name": "fedsgd", "lr": 0.1}, "local": {"batch": 0}},
        },
    },
    "block": [{"name": "all", "algorithm": ["fedavg"]}],
    "leakage": [
        {
            "name": "images",
            "x": "images",
            "values": [1, 2],
            "base": {
                "rounds": 1,
                "data": "digits",
                "partition": {"name": "iid", "clients": 20},
                "task": {"model": {"name": "mlp", "widths": [16]}},
                "local": {"batch": 0},
            },
            "series": {"fedsgd": {"algorithm": {"name": "fedsgd", "lr": 0.1}}},
            "attack": {"fc": {"method": "fc", "victims": 3}, "labels": {"method": "labels", "victims": 3}},
        }
    ],
    "card": [{"name": "card", "row": {"data": "digits"}, "methods": ["fedavg", "fedsgd"], "seeds": 2}],
    "size": {"smoke": {"seeds": 1, "figures": ["images"]}, "plain": {"figures": []}},
}


def changed(**changes: Any) -> dict[str, Any]:
    return {**RAW, **changes}


def leakage(**changes: Any) -> dict[str, Any]:
    return changed(leakage=[{**RAW["leakage"][0], **changes}])


def small() -> Suite:
    return parse(RAW, "small")


def test_every_series_is_attacked_in_every_way_at_every_x() -> None:
    points = planned(small().leakage[0])
    assert [(p.x, p.series, p.way) for p in points] == [
        (1, "fedsgd", "fc"), (1, "fedsgd", "labels"), (2, "fedsgd", "fc"), (2, "fedsgd", "labels"),
    ]  # fmt: skip
    assert [p.options.images for p in points] == [1, 1, 2, 2]


def test_an_x_may_be_a_path_of_the_experiment() -> None:
    figure = parse(leakage(x="local.epochs", values=[1, 3]), "small").leakage[0]
    assert [p.experiment.local.epochs for p in planned(figure)] == [1, 1, 3, 3]


def test_what_is_done_is_not_done_again_unless_it_was_asked_otherwise(tmp_path: Path) -> None:
    figure = small().leakage[0]
    first = draw_leakage(figure, tmp_path, device="cpu")
    assert (len(first.rows), first.left) == (4, 0)
    assert all(0 <= row["scores"]["label_accuracy"]["mean"] <= 1 for row in first.rows)
    assert first.rows[0]["scores"]["l2"]["mean"] == pytest.approx(0.0, abs=1e-3)  # one image: in closed form
    assert {p.name for p in tmp_path.iterdir()} == {"leakage.json", "leakage.html", "leakage.png", "points"}
    assert json.loads((tmp_path / "leakage.json").read_text())["rows"] == first.rows
    again = draw_leakage(figure, tmp_path, device="cpu", until=0.0)  # no time for anything new
    assert again.rows == first.rows
    other = draw_leakage(figure, tmp_path, ["algorithm.lr=0.2"], device="cpu", until=0.0)
    assert (other.rows, other.left, other.page) == ([], 4, None)


def test_an_attack_that_cannot_be_says_why_and_the_others_go_on(tmp_path: Path) -> None:
    ways = {"nobody": {"method": "fc", "victims": 0}, "labels": {"method": "labels", "victims": 3}}
    drawn = draw_leakage(parse(leakage(values=[1], attack=ways), "small").leakage[0], tmp_path, device="cpu")
    assert "--victims: must be 1 or more" in drawn.rows[0]["refused"]
    assert "scores" in drawn.rows[1]


def test_sizes_choose_figures() -> None:
    names = {
        size: [f.name for f in (*s.leakage, *s.cards)] for size in ("full", "smoke", "plain") if (s := small().at(size))
    }
    assert names == {"full": ["images", "card"], "smoke": ["images"], "plain": []}


def test_a_card_is_of_the_suites_cells_also_of_those_that_its_table_leaves_out() -> None:
    suite = small()
    cells = cells_at(suite, {"data": "digits"}, ["rounds=7"])
    assert list(cells) == ["fedavg", "fedsgd"]
    assert all(Experiment.parse(raw).rounds == 7 for raw in cells.values())
    sources = suite_sources(suite, suite.cards[0])
    assert [(name, raw["algorithm"]["name"]) for name, raw in sources] == [("fedavg", "fedavg"), ("fedsgd", "fedsgd")]
    assert suite_card_options(suite.at("smoke"), suite.cards[0], None, 1, "cpu").seeds == 1
    assert suite_card_options(suite, suite.cards[0], 5, 1, "cpu").seeds == 5


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no such option": (leakage(attack={"fc": {"method": "fc", "victim": 3}}), "Did you mean victims"),
    "no such score": (leakage(scores=["l3"]), "there is no 'l3'"),
    "an x without values": (leakage(values=[]), "x and values go together"),
    "an axis of the row is missing": (changed(card=[{"name": "c", "row": {}, "methods": ["fedavg"]}]), "card.c.row"),
    "no such method": (
        changed(card=[{"name": "c", "row": {"data": "digits"}, "methods": ["fedavgg"]}]),
        "Did you mean fedavg",
    ),
    "two of one name": (changed(card=[{**RAW["card"][0], "name": "images"}]), "is the name of two"),
    "no such figure": (changed(size={"smoke": {"figures": ["image"]}}), "Did you mean 'images'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_figure_that_cannot_be_is_refused_with_advice(what: str) -> None:
    raw, words = WRONG[what]
    with pytest.raises(ConfigError, match=words):
        parse(raw, "small")


def test_fedeval_declares_its_figures_and_every_point_and_method_is_an_experiment() -> None:
    suite = read("fedeval")
    assert [f.name for f in suite.leakage[:3]] == ["figure-6", "figure-7", "figure-8"]
    assert {p.series for p in planned(suite.leakage[2])} == set(suite.cards[0].methods)
    for figure in suite.leakage:
        assert planned(figure)
    for card in suite.cards:
        for _, raw in suite_sources(suite, card):
            Experiment.parse(raw)
