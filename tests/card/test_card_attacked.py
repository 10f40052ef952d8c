"""Attacks on a card: what diverges, what is planted, and methods that cannot be attacked in the same ways."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.card import CardOptions, CardOutcome, CardPlan, lead, plan_card, run_card
from atoll.card.card_measures import Measured
from atoll.card.card_tables import all_tables, capabilities, tables
from atoll.card.profiles import PROFILES, ScorePart, kept, withstood
from atoll.card.radar import _draw
from atoll.card.score_card import AxisScore, ScoreCard, score
from atoll.report import MISSING, TextTable, known_metric
from atoll.stats import t_interval

STEEP: dict[str, Any] = {  # a search for the worst factor makes it overflow
    "rounds": 12,
    "data": "digits",
    "partition": {"name": "iid", "clients": 10},
    "task": {"model": {"name": "mlp", "widths": [16, 16]}},
    "local": {"epochs": 1, "batch": 32},
    "algorithm": {"name": "fedavg", "lr": 0.5},
}


def made(folder: Path, files: list[tuple[str, dict[str, Any]]], **options: Any) -> tuple[CardPlan, CardOutcome]:
    asked = CardOptions(seeds=2, device="cpu", **options)
    plan = plan_card(files, [], folder, asked)
    return plan, run_card(plan, folder, asked, "Attacked")


def measured(done: CardOutcome) -> dict[str, Measured]:
    assert done.card is not None
    return {m.method: m for m in done.card.measured}


def part(done: CardOutcome, axis: str, name: str, method: str) -> ScorePart:
    assert done.card is not None
    return next(p for p in done.card.scores[method][axis].parts if p.name == name)


def rows(done: CardOutcome, axis: str, title: str, dcs: bool = False) -> list[list[str]]:
    assert done.card is not None
    table: TextTable = next(t for t in tables(done.card, axis, dcs) if t.title == title)
    return [[cell.inline for cell in row.filled] for row in table.rows]


# What diverges.


@pytest.fixture(scope="module")
def steep_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("steep")


@pytest.fixture(scope="module")
def steep(steep_folder: Path) -> tuple[CardPlan, CardOutcome]:
    return made(steep_folder, [("steep", STEEP)], attacks=("label_flip", "ipm_search"))


def test_an_attack_that_makes_a_run_diverge_is_the_worst_one_and_leaves_nothing(
    steep: tuple[CardPlan, CardOutcome],
) -> None:
    _, done = steep
    found = measured(done)["steep"]
    assert found.diverged["attack-ipm_search"]
    worst = part(done, "robustness", "attacks", "steep")
    assert set(worst.by_seed) == {0, 1}, "a seed is not left out because its run broke off"
    assert all(worst.by_seed[seed] == 0.0 for seed in found.diverged["attack-ipm_search"])
    line = next(line for line in rows(done, "robustness", "Under stress") if "ipm search" in line[0])
    assert "diverged" in line[1]
    assert done.card is not None
    assert any("diverged" in words for words in done.card.left_out)
    assert not any("failed" in words for words in done.card.left_out)


def test_what_diverged_is_not_run_again(steep: tuple[CardPlan, CardOutcome], steep_folder: Path) -> None:
    plan, done = steep
    times = {p: p.stat().st_mtime_ns for p in steep_folder.glob("cells/*/run.json")}
    again = run_card(plan, steep_folder, CardOptions(seeds=2, device="cpu", attacks=("label_flip", "ipm_search")), "")
    assert {p: p.stat().st_mtime_ns for p in steep_folder.glob("cells/*/run.json")} == times
    assert part(again, "robustness", "attacks", "steep") == part(done, "robustness", "attacks", "steep")


@pytest.mark.parametrize("condition", ["labels", "dropouts", "own"])
def test_data_and_faults_that_make_a_run_diverge_leave_nothing_too(
    steep: tuple[CardPlan, CardOutcome], condition: str
) -> None:
    one = measured(steep[1])["steep"]
    kept = {seed: record for seed, record in one.records[condition].items() if seed != 0}
    broken = replace(one, records={**one.records, condition: kept}, diverged={condition: frozenset({0})})
    scored = score("", PROFILES["atoll"], [broken], (0, 1)).scores["steep"]
    stressed = next(
        p for p in scored["robustness"].parts if p.name == ("faults" if condition == "dropouts" else "data")
    )
    before = part(steep[1], "robustness", stressed.name, "steep")
    assert stressed.by_seed[0] < before.by_seed[0]
    assert stressed.by_seed[1] == before.by_seed[1]
    if condition == "own":
        assert scored["effectiveness"].by_seed[0] == 0.0
        assert scored["efficiency"].by_seed[0] == 0.0


# What is planted.

QUIET: dict[str, Any] = {  # a backdoor that leaves accuracy alone
    **STEEP,
    "rounds": 10,
    "task": {"model": {"name": "mlp", "widths": [32]}},
    "local": {"epochs": 2, "batch": 16},
    "algorithm": {"name": "fedavg", "lr": 0.2},
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> CardOutcome:
    return made(tmp_path_factory.mktemp("planted"), [("quiet", QUIET)], attacks=("backdoor", "zero"))[1]


def test_a_backdoor_that_works_leaves_little_robustness_however_high_the_accuracy(planted: CardOutcome) -> None:
    one = measured(planted)["quiet"]
    success = {seed: record.attack.success for seed, record in one.records["attack-backdoor"].items() if record.attack}
    assert min(success.values()) > 0.8
    assert min(kept(one, "attack-backdoor", "own").values()) > 0.8
    worst = part(planted, "robustness", "attacks", "quiet")
    assert worst.by_seed == {
        seed: pytest.approx(1 - (success[seed] - one.clean["attack-backdoor"][seed])) for seed in success
    }


def test_what_an_attack_wants_is_counted_above_what_a_clean_model_gives_it(planted: CardOutcome) -> None:
    one = measured(planted)["quiet"]
    assert all(0.0 <= rate < 0.3 for rate in one.clean["attack-backdoor"].values())
    assert "attack-zero" not in one.clean, "an attack that wants no class has no success"
    assert one.planted("attack-zero") == {}


def test_the_table_under_stress_shows_success(planted: CardOutcome) -> None:
    lines = {line[0]: line for line in rows(planted, "robustness", "Under stress")}
    assert len(lines["attack: backdoor by 20%"]) == 4
    assert float(lines["attack: backdoor by 20%"][3].split()[0]) > 80
    assert lines["attack: zero by 20%"][3] == MISSING


def test_the_capability_score_of_a_backdoor_is_of_its_success(planted: CardOutcome) -> None:
    one = measured(planted)["quiet"]
    line = next(line for line in rows(planted, "robustness", "Capability", dcs=True) if "backdoor" in line[1])
    by_hand = []
    for seed, record in one.records["attack-backdoor"].items():
        assert record.attack is not None
        apart = record.attack.success - one.clean["attack-backdoor"][seed]
        lost = one.quality("attack-backdoor")[seed] - one.quality("own")[seed]
        by_hand.append(1 / (1 + math.sqrt(0.5 * apart**2 + 0.5 * lost**2)))
    assert float(line[2].split()[0]) == pytest.approx(sum(by_hand) / len(by_hand), abs=1e-3)


# Methods that cannot all be attacked in the same ways.

CLIPPED: dict[str, Any] = {"transform": ["equal_weights", {"name": "clip_l2", "max_norm": 5.0}]}
SECRET: dict[str, Any] = {**QUIET, **CLIPPED, "secure": {"protocol": "secagg", "mode": "cost"}}


def without(one: Measured, condition: str, seeds: set[int]) -> Measured:
    left = {seed: r for seed, r in one.records[condition].items() if seed not in seeds}
    return replace(one, records={**one.records, condition: left}, missing={**one.missing, condition: "it was late"})


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> CardOutcome:
    files = [("open", {**QUIET, "rounds": 4}), ("secret", {**SECRET, "rounds": 4})]
    return made(tmp_path_factory.mktemp("two"), files, attacks=("ipm", "sign_flip", "mimic"))[1]


def test_attacks_that_a_secure_sum_hides_others_from_are_tried_without_that_on_all_methods(two: CardOutcome) -> None:
    for one in measured(two).values():
        experiments = [r.experiment["attack"] for r in one.records["attack-ipm"].values()]
        assert [e["sees"] for e in experiments] == ["colluders", "colluders"]


def test_a_condition_that_one_method_lacks_counts_for_none(two: CardOutcome) -> None:
    assert "attack-mimic" in measured(two)["open"].records
    assert "attack-mimic" not in measured(two)["secret"].records
    worst = {name: part(two, "robustness", "attacks", name).by_seed for name in ("open", "secret")}
    for name, one in measured(two).items():
        both = [withstood(one, f"attack-{attack}") for attack in ("ipm", "sign_flip")]
        assert worst[name] == {seed: min(by[seed] for by in both) for seed in (0, 1)}
    assert two.card is not None
    assert any("Not in the scores" in words and "mimic" in words for words in two.card.left_out)


def test_what_a_budget_cut_off_is_left_out_for_all_seed_by_seed(planted: CardOutcome) -> None:
    whole = measured(planted)["quiet"]
    cut = replace(without(whole, "together", {0, 1}), method="cut")
    cut = without(without(cut, "attack-backdoor", {1}), "labels", {1})
    scored = score("", PROFILES["atoll"], [whole, cut], (0, 1))
    parts = {m: {p.name: p.by_seed for p in scored.scores[m]["robustness"].parts} for m in ("quiet", "cut")}
    assert parts["quiet"] == parts["cut"], "the same runs, so the same score, whatever was cut off"
    assert set(parts["cut"]["attacks"]) == {0}
    assert any("correlation" in words and "it was late" in words for words in scored.left_out)


def test_capability_over_all_attacks_is_over_those_that_every_method_has(two: CardOutcome) -> None:
    lines = rows(two, "robustness", "Capability", dcs=True)
    for name, one in measured(two).items():
        shared = [v for attack in ("ipm", "sign_flip") for v in capabilities(one, f"attack-{attack}").values()]
        member = [float(line[2].split()[0]) for line in lines if line[:2] == [name, "membership"]]
        whole = next(float(line[2]) for line in lines if line[0] == name and line[1].startswith("all"))
        assert whole == pytest.approx((sum(shared) / len(shared) + member[0]) / 2, abs=2e-3)


def test_a_file_with_an_attack_of_its_own_says_where_it_stands(tmp_path: Path) -> None:
    plan = plan_card(
        [("mine", {**QUIET, "attack": {"name": "zero", "share": 0.2}})], [], tmp_path, CardOptions(seeds=1)
    )
    assert any("its own [attack] (zero)" in note for note in plan.methods[0].notes)


@pytest.mark.parametrize(("key", "share"), [("loss", False), ("r2", False), ("ece", True)])
def test_capability_is_of_shares_alone_and_knows_which_way_is_better(
    planted: CardOutcome, key: str, share: bool
) -> None:
    assert planted.card is not None
    metric = known_metric(key)
    one = replace(measured(planted)["quiet"], metric=metric)
    lines = rows(
        replace(planted, card=score("", PROFILES["atoll"], [one], (0, 1))), "robustness", "Capability", dcs=True
    )
    if not share:
        assert [line[2] for line in lines] == ["not measured"]
        return
    # an attack that makes an error grow has reached something
    fake = CalibrationError(**{**vars(one), "metric": metric})
    assert capabilities(fake, "attack-zero") == {seed: pytest.approx(1 / (1 + 0.3)) for seed in (0, 1)}


class CalibrationError(Measured):
    def quality(self, condition: str) -> dict[int, float]:
        return dict.fromkeys((0, 1), 0.1 if condition == "own" else 0.4)


NOTHING = AxisScore("fairness", (), (), {}, None)


def with_scores(card: ScoreCard, by_method: dict[str, dict[str, float]]) -> ScoreCard:
    """The same card with made-up scores."""
    one = card.measured[0]
    scores = {
        m: {a: replace(card.scores[one.method][a], estimate=t_interval([v])) for a, v in axes.items()}
        for m, axes in by_method.items()
    }
    return replace(card, measured=tuple(replace(one, method=m) for m in by_method), scores=scores)


def test_what_many_methods_have_in_common_is_said_once(planted: CardOutcome) -> None:
    assert planted.card is not None
    axes = ("effectiveness", "robustness", "efficiency", "privacy", "fairness")
    low = {m: {**dict.fromkeys(axes, 0.5), "effectiveness": 0.0} for m in "abcd"}
    low["a"]["privacy"] = low["b"]["robustness"] = low["c"]["robustness"] = 0.75
    low["d"] = {**dict.fromkeys(axes, 0.5), "privacy": 0.25, "fairness": 0.75}
    sentences = lead(with_scores(planted.card, low))
    assert sentences == [
        "a, b and c are weakest in effectiveness (0.00), of 1; strongest: a in privacy (0.75), b and c in robustness "
        "(0.75).",
        "d is strongest in fairness (0.75) and weakest in privacy (0.25), of 1.",
    ]
    flat = with_scores(planted.card, {"a": dict.fromkeys(axes, 0.0)})
    assert lead(flat) == ["a has 0.00 on every axis, of 1."]


def test_the_capability_table_stands_once(planted: CardOutcome) -> None:
    assert planted.card is not None
    titles = [t.title for _, found in all_tables(planted.card, dcs=True) for t in found]
    assert titles.count("Capability") == 1


@pytest.mark.slow
@pytest.mark.figures
def test_labels_of_the_chart_stand_clear_of_its_circle(planted: CardOutcome) -> None:
    assert planted.card is not None
    axes = ("effectiveness", "robustness", "efficiency", "privacy")  # four: one points to the right
    card = with_scores(planted.card, {m: dict.fromkeys(axes, 0.5) for m in "abcdefg"})
    figure = _draw(replace(card, scores={m: {**one, "fairness": NOTHING} for m, one in card.scores.items()}))
    figure.canvas.draw()
    polar = figure.axes[0]
    (x, y), edge = polar.transData.transform((0.0, 0.0)), polar.transData.transform((0.0, 1.0))
    radius = float(np.hypot(edge[0] - x, edge[1] - y))
    for label in polar.get_xticklabels():
        box = label.get_window_extent()
        near = np.hypot(
            *(max(low - at, 0.0, at - high) for at, low, high in ((x, box.x0, box.x1), (y, box.y0, box.y1)))
        )
        assert near > radius + 5, label.get_text()


def test_a_method_that_diverges_by_itself_is_not_left_out_without_a_word(tmp_path: Path) -> None:
    short = {**QUIET, "rounds": 3}
    wild = {**short, "task": STEEP["task"], "algorithm": {"name": "fedavg", "lr": 1e6}}
    _, done = made(tmp_path, [("calm", short), ("wild", wild)], attacks=())
    assert list(measured(done)) == ["calm"]
    assert done.card is not None
    assert any("wild has no scores" in words for words in done.card.left_out)
