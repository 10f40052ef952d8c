"""A card of two small methods: what it runs, what it says, how it goes on, and what it refuses."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

import atoll.card.attacks as joint
from atoll.card import (
    CardOptions,
    CardOutcome,
    CardPlan,
    named_sources,
    plan_card,
    run_card,
    score_table,
    values,
    write,
)
from atoll.card.card_budget import LADDER, CardSize, Pace, chosen_size
from atoll.card.card_measures import Measured
from atoll.card.card_tables import tables
from atoll.card.profiles import PROFILES
from atoll.card.score_card import score
from atoll.cli.main import app
from atoll.errors import ConfigError
from atoll.experiment import Experiment
from atoll.records import SweepFolder
from atoll.report import rich_table

RAW: dict[str, Any] = {
    "rounds": 6,
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 12, "alpha": 5.0},
    "task": {"model": "linear"},
    "local": {"batch": 16, "epochs": 2},
    "algorithm": {"name": "fedavg", "lr": 0.5},
}
SLOW: dict[str, Any] = {**RAW, "algorithm": {"name": "fedavg", "lr": 0.001}}
OPTIONS = CardOptions(seeds=2)


@pytest.fixture(scope="module")
def plan() -> CardPlan:
    return plan_card([("quick", RAW), ("slow", SLOW)], [], Path("unused"), OPTIONS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("card")


@pytest.fixture(scope="module")
def done(plan: CardPlan, folder: Path) -> CardOutcome:
    return run_card(plan, folder, OPTIONS, "Two methods")


def by_method(done: CardOutcome) -> dict[str, Measured]:
    assert done.card is not None
    return {m.method: m for m in done.card.measured}


def test_a_plan_has_every_condition_of_every_method_and_what_is_the_same_once(plan: CardPlan) -> None:
    conditions = {job.scenario.name for job in plan.jobs}
    assert conditions >= {"own", "local", "central", "fedsgd", "iid", "labels", "features", "stragglers", "by_data"}
    same = plan_card([("a", RAW), ("b", {**RAW, "label": "b"})], [], Path("unused"), OPTIONS)
    shared = {j.cell.digest for j in same.jobs if j.scenario.name == "local"}
    assert len(shared) == 2  # one for each seed, not for each method
    assert len(same.cells) < len(same.jobs)


def test_all_runs_are_made_and_every_axis_has_a_score_with_an_interval(done: CardOutcome) -> None:
    assert done.sweep.status == "finished"
    assert done.card is not None
    assert done.card.axes == ["effectiveness", "robustness", "efficiency", "privacy", "fairness"]
    for axes in done.card.scores.values():
        for one in axes.values():
            assert one.estimate is not None
            assert 0 <= one.estimate.low <= one.estimate.mean <= one.estimate.high <= 1  # type: ignore[operator]


def test_a_method_that_hardly_learns_is_less_effective_and_never_gets_there(done: CardOutcome) -> None:
    assert done.card is not None
    quick, slow = (done.card.scores[name] for name in ("quick", "slow"))
    assert quick["effectiveness"].estimate.mean > slow["effectiveness"].estimate.mean  # type: ignore[union-attr]
    assert set(by_method(done)["slow"].costs("own", "rounds").values()) == {float("inf")}
    assert slow["efficiency"].estimate.mean == 0.0  # type: ignore[union-attr]


def test_a_badly_chosen_rate_does_not_weaken_what_a_method_is_compared_with(done: CardOutcome) -> None:
    quick, slow = by_method(done)["quick"], by_method(done)["slow"]
    for name in ("local", "central"):
        assert quick.on_clients(name) == slow.on_clients(name)
        assert slow.records[name][0].experiment["algorithm"]["lr"] == 0.5


def test_a_method_that_is_the_pooled_one_has_effectiveness_one(done: CardOutcome) -> None:
    one = by_method(done)["quick"]
    pooled = replace(one, records={**one.records, "own": one.records["central"]})
    alone = replace(one, records={**one.records, "own": one.records["local"]})
    card = score("", PROFILES["atoll"], [replace(pooled, method="p"), replace(alone, method="a")], (0, 1))
    assert set(card.scores["p"]["effectiveness"].by_seed.values()) == {1.0}
    assert set(card.scores["a"]["effectiveness"].by_seed.values()) == {0.0}
    assert card.scores["a"]["fairness"].parts[2].by_seed == {0: 1.0, 1: 1.0}  # nobody is harmed by nothing
    data = card.scores["p"]["robustness"]
    assert data.estimate is not None


def test_numbers_are_those_of_the_records(done: CardOutcome) -> None:
    one = by_method(done)["quick"]
    record = one.own[0]
    assert one.quality("own")[0] == record.rounds[-1]["accuracy"]
    assert record.clients is not None
    sizes, accuracy = record.clients.examples, record.clients.before["accuracy"]
    by_hand = sum(n * a for n, a in zip(sizes, accuracy, strict=True)) / sum(sizes)
    assert one.on_clients("own")[0] == pytest.approx(by_hand)
    whole = sum(line["bytes"]["up"] + line["bytes"]["down"] for line in record.rounds)
    assert one.spent("own", "bytes")[0] == whole


def test_updates_are_attacked_and_what_is_identified_lowers_the_score(done: CardOutcome) -> None:
    assert done.card is not None
    one = by_method(done)["quick"]
    leak = next(p for p in done.card.scores["quick"]["privacy"].parts if p.name == "leakage")
    assert set(one.leakage) == {0, 1}
    assert all(0 < found["identification"] < 1 for found in one.leakage.values())
    assert leak.by_seed == {seed: 1 - found["identification"] for seed, found in one.leakage.items()}


def test_the_worst_attack_counts(done: CardOutcome) -> None:
    assert done.card is not None
    one = by_method(done)["quick"]
    assert one.attacks == [f"attack-{name}" for name in joint.WORST_OF]
    part = next(p for p in done.card.scores["quick"]["robustness"].parts if p.name == "attacks")
    worst = min(one.attacks, key=lambda name: one.quality(name)[0])
    assert one.quality(worst)[0] < one.quality("own")[0]
    assert part.by_seed[0] < 1
    assert one.records[worst][0].run["attack"]["count"] == 2  # a fifth of twelve clients


def test_what_cannot_be_measured_says_why(tmp_path: Path) -> None:
    first = {**RAW, "task": {"model": {"name": "cnn"}}, "data": "digits"}
    found, why = joint.leakage(Experiment.parse(first), 0)
    assert found is None
    assert "dense" in why


def test_nothing_is_run_twice(plan: CardPlan, folder: Path, done: CardOutcome) -> None:
    times = {p: p.stat().st_mtime_ns for p in folder.glob("cells/*/record.jsonl")}
    assert len(times) == len(plan.cells)
    run_card(plan, folder, OPTIONS, "Two methods")
    assert {p: p.stat().st_mtime_ns for p in folder.glob("cells/*/record.jsonl")} == times


@pytest.mark.parametrize("profile", ["fedeval", "fedeval-published"])
def test_the_same_runs_under_fedevals_rules(plan: CardPlan, folder: Path, done: CardOutcome, profile: str) -> None:
    card = run_card(plan, folder, replace(OPTIONS, profile=profile), "Two methods").card
    assert card is not None
    assert card.axes == ["effectiveness", "robustness", "efficiency", "privacy"]
    assert set(card.scores["quick"]["privacy"].by_seed.values()) == {2.0}  # plain parameters of several steps
    never = card.scores["slow"]["efficiency"].by_seed[0]
    assert never == (0.0 if profile == "fedeval" else pytest.approx(2.718281828))


@pytest.mark.slow
@pytest.mark.figures
def test_every_axis_opens_its_table_in_one_page_that_loads_nothing(done: CardOutcome, tmp_path: Path) -> None:
    assert done.card is not None
    places = write(done.card, tmp_path, dcs=True)
    page = places["card.html"].read_text()
    for axis in done.card.axes:
        assert f'<details class="card axis" id="axis-{axis}">' in page
        assert re.search(rf'<a [^>]*xlink:href="#axis-{axis}"', page), "a label of the chart is a link"
        assert f'<a href="#axis-{axis}">' in page
    assert not re.search(r"""(src|href)=["']?(https?:|//)""", page)
    assert "Capability" in page
    assert places["card.png"].read_bytes().startswith(b"\x89PNG")
    assert places["card.pdf"].read_bytes().startswith(b"%PDF")
    told = json.loads(places["card.json"].read_text())
    assert told["scores"]["quick"]["effectiveness"]["score"] == pytest.approx(
        done.card.scores["quick"]["effectiveness"].estimate.mean  # type: ignore[union-attr]
    )
    assert told == json.loads(json.dumps(values(done.card, dcs=True)))


def test_tables_say_what_was_measured(done: CardOutcome) -> None:
    assert done.card is not None
    console = Console(width=220, record=True, file=io.StringIO())
    for axis in done.card.axes:
        for table in tables(done.card, axis):
            console.print(rich_table(table))
    console.print(rich_table(score_table(done.card)))
    text = console.export_text()
    for words in (
        "dropouts: 30%, correlation 0.8",
        "FedSGD (baseline)",
        "2 of 2 seeds never",
        "membership AUC",
        "Gini",
    ):
        assert words in text


# Budgets.


def test_a_budget_takes_the_largest_size_that_fits() -> None:
    class Fake:
        def __init__(self, size: CardSize) -> None:
            self.cells, self.rounds = [0] * (10 * size.seeds), int(1000 * size.seeds * size.share)

    def chosen(budget: float) -> CardSize:
        return chosen_size(lambda s: Fake(s), Pace(0.1, 1.0), budget, 2)  # type: ignore[arg-type, return-value]

    assert chosen(1e6) == LADDER[0]
    assert chosen(0.001) == LADDER[-1]
    sizes = [LADDER.index(chosen(b)) for b in (1e4, 400, 200, 100, 30, 10)]
    assert sizes == sorted(sizes)
    assert chosen(206.3) == CardSize(3, 1.0)  # 30 runs and 3,000 rounds on two workers


def test_a_budget_says_what_it_left_out_and_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.card.make_card.measured_pace", lambda methods, device: Pace(1.0, 0.0))
    options = CardOptions(budget=60.0)
    plan = plan_card([("quick", RAW)], [], tmp_path, options)
    assert len(plan.seeds) == 1
    assert "1 seed instead of 3" in plan.left_out[0]
    SweepFolder(tmp_path).claim(resume=True)  # what is remembered does not keep the card's own sweep out
    monkeypatch.setattr("atoll.card.make_card.measured_pace", lambda methods, device: Pace(0.0, 0.0))
    assert plan_card([("quick", RAW)], [], tmp_path, options).cells == plan.cells  # a faster machine goes on with it
    assert len(plan_card([("quick", RAW)], [], tmp_path / "new", options).seeds) == 5


def test_what_the_pilot_took_is_of_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((100.0, 125.0))  # the pilot's beginning and end
    monkeypatch.setattr("atoll.card.make_card.time.monotonic", lambda: next(clock))
    monkeypatch.setattr("atoll.card.make_card.measured_pace", lambda methods, device: Pace(0.0, 0.0))
    plan = plan_card([("quick", RAW)], [], tmp_path, CardOptions(budget=60.0))
    assert plan.spent == 25.0
    seen: list[float | None] = []

    def no_sweep(*args: Any, until: float | None, **how: Any) -> Any:
        seen.append(until)
        raise KeyboardInterrupt

    monkeypatch.setattr("atoll.card.make_card.sweep", no_sweep)
    monkeypatch.setattr("atoll.card.make_card.time.monotonic", lambda: 1000.0)
    with pytest.raises(KeyboardInterrupt):
        run_card(plan, tmp_path, CardOptions(budget=60.0), "")
    assert seen == [1035.0]


# Mistakes.


def test_mistakes_are_refused_with_advice(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text('rounds = 2\ndata = "digits"\nalgorithm = { name = "fedavg", lr = 0.1 }\n')
    bad.write_text('rounds = 2\ndata = "digits"\nalgorithm = { name = "fedvag", lr = 0.1 }\nsweep = { seeds = 2 }\n')
    with pytest.raises(ConfigError, match=r"has a \[sweep\] table"):
        named_sources([bad])
    with pytest.raises(ConfigError, match="name of two methods"):
        named_sources([good, good])
    with pytest.raises(ConfigError, match="--profile: 'fedevil' is not known"):
        plan_card([("a", RAW)], [], tmp_path, CardOptions(profile="fedevil"))
    with pytest.raises(ConfigError, match="fedvag"):
        plan_card([("a", RAW), ("b", {**RAW, "algorithm": "fedvag"})], [], tmp_path, OPTIONS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["card", "nowhere.toml"], "nowhere.toml"),
        (["card", "--seeds", "0"], "--seeds: must be above 0"),
        (["card", "--budget", "soon"], "--budget"),
    ],
)
def test_the_command_refuses_what_a_newcomer_mistypes(words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code != 0
    assert said in f"{result.output} {result.exception}"


def test_a_dry_run_prints_what_would_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["card", "--dry-run", "--seeds", "1", "--set", "rounds=2"])
    assert result.exit_code == 0, result.output
    assert "fedavg-own-seed=0: 2 rounds, to run" in result.output
    assert " 1 seed." in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_with_a_budget_runs_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("atoll.card.make_card.measured_pace", lambda *args: pytest.fail("a dry run has no pilot"))
    result = CliRunner().invoke(app, ["card", "--dry-run", "--budget", "1", "--set", "rounds=2"])
    assert result.exit_code == 0, result.output
    assert "--budget is measured when the card runs" in " ".join(result.output.split())
    assert list(tmp_path.iterdir()) == []


def test_a_metric_that_nobody_measures_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--metric: quick has no 'nosuch'\. It has accuracy, "):
        plan_card([("quick", RAW)], [], tmp_path, CardOptions(metric="nosuch"))
    assert plan_card([("quick", RAW)], [], tmp_path, CardOptions(metric="loss", seeds=1)).cells
