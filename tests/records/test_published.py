"""The published tables are what the papers print, and the verdict follows its own rule."""

import csv
import math
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import ConfigError
from atoll.records import Cell, Results, Trace, read_results, write_results
from atoll.records.published import Published, published_figure, published_table, published_tables
from atoll.records.versus_published import MARGIN, MeanOverSeeds, VersusPublished, compare_with_published, right_of

AXES = ("data", "partition", "algorithm")
FOLDER = resources.files("atoll.records") / "reference"


def place(name: str) -> dict[str, str]:
    return dict(zip(AXES, name.split("/"), strict=True))


def cell(name: str, *last: float, best: Sequence[float] | None = None, **changes: Any) -> Cell:
    peaks = best or last
    runs = [
        Trace(seed, "", (1, 2), (peak, end), (1.0, 2.0), (1.0, 2.0), partition=f"p{seed}")
        for seed, (end, peak) in enumerate(zip(last, peaks, strict=True))
    ]
    return replace(Cell("images", place(name), tuple(runs)), **changes)


def results(*cells: Cell, **changes: Any) -> Results:
    plain = Results(
        "mine", "", "full", "accuracy", True, AXES, cells, scale=100, reference="niid_bench_table3", missing={}
    )
    return replace(plain, **changes)


def row(made: Results, name: str) -> VersusPublished:
    return next(r for r in compare_with_published(made) if r.name == name)


def both(found: VersusPublished) -> list[MeanOverSeeds]:
    return [score for score in (found.ours_last, found.ours_best) if score]


def allowed_for(theirs: Published, ours: MeanOverSeeds) -> float:
    """The rule once more, in per cent."""
    s = theirs.std or 0.0
    error = sqrt(s * s / theirs.runs + (s if ours.std is None else ours.std) ** 2 / ours.n)
    return max(1.0, 2 * error)


# The tables.


@pytest.mark.parametrize(
    ("reference", "at", "metric", "mean", "std"),
    [  # read off the papers
        ("niid_bench_table3", "mnist/classes(1)/fedprox", "accuracy", 0.409, 0.231),
        ("niid_bench_table3", "fmnist/classes(2)/scaffold", "accuracy", 0.428, 0.287),
        ("niid_bench_table3", "cifar10/quantity(0.5)/fednova", "accuracy", 0.244, 0.153),
        ("niid_bench_table3", "adult/classes(1)/scaffold", "accuracy", 0.236, 0.0),
        ("niid_bench_table3", "covtype/iid/fedprox", "accuracy", 0.852, 0.0),
        ("niid_bench_table3", "fcube/synthetic/fednova", "accuracy", 0.997, 0.001),
        ("pfl_research_tables", "cifar10/iid/fedprox", "accuracy", 0.7069, 0.0033),
        ("pfl_research_tables", "cifar10/dirichlet(0.1)/scaffold", "accuracy", 0.6017, 0.0129),
        ("pfl_research_tables", "stackoverflow/natural/fedavg", "perplexity", 60.87, 0.28),
        ("oarf_tables", "cifar10-resnet18//fedprox(0.01)", "accuracy", 0.8936, 0.0008),
        ("oarf_tables", "sentiment-lstm//fedsgd", "accuracy", 0.8634, 0.0103),
        ("oarf_tables", "cifar10-resnet18//fedsgd, epsilon 0.5", "accuracy", 0.58, 0.0299),
        ("oarf_tables", "sentiment-lstm//fedsgd", "accuracy@amazon", 0.8562, 0.0121),
        ("fedeval_tables", "mnist/non-iid/fedavg", "accuracy", 0.97843, 0.006 * sqrt(10)),
        ("fedeval_tables", "mnist/iid/central", "accuracy", 0.98614, 0.001 * sqrt(10)),
    ],
)
def test_a_figure_is_the_one_in_the_paper(reference: str, at: str, metric: str, mean: float, std: float) -> None:
    found = published_figure(reference, place(at), metric)
    assert found is not None
    assert found.mean == pytest.approx(mean)
    assert found.std == pytest.approx(std)


def test_a_paper_without_deviations_has_none() -> None:
    found = published_figure("fedml_tables", {"data": "cifar10", "model": "resnet56", "setup": "lda"})
    assert found is not None
    assert (found.mean, found.std, found.runs) == (0.8712, None, 1)


def test_what_is_illegible_in_the_paper_is_not_made_up() -> None:
    for name in ("mnist/noise(0.1)/fednova", "covtype/dirichlet(0.5)/fednova", "cifar10/noise(0.1)/scaffold"):
        assert published_figure("niid_bench_table3", place(name)) is None
        assert name in published_table("niid_bench_table3").source.note


def test_a_cell_may_have_more_axes_than_the_paper() -> None:
    path = {**place("fmnist/iid/fedavg"), "model": "lenet"}
    assert published_figure("niid_bench_table3", path) == published_figure(
        "niid_bench_table3", place("fmnist/iid/fedavg")
    )
    assert published_figure("niid_bench_table3", {"data": "fmnist", "partition": "iid"}) is None


@pytest.mark.parametrize("name", published_tables())
def test_every_table_names_its_source_and_has_each_figure_once(name: str) -> None:
    found = published_table(name)
    assert found.source.url.startswith("https://arxiv.org/abs/")
    assert found.source.paper
    places = [(*sorted(e.at.items()), e.metric) for e in found.entries]
    assert len(set(places)) == len(places) == len((FOLDER / f"{name}.csv").read_text().splitlines()) - 1


@pytest.mark.parametrize("name", published_tables())
def test_every_figure_is_finite_and_every_accuracy_a_share(name: str) -> None:
    for e in published_table(name).entries:
        assert math.isfinite(e.figure.mean), e
        assert e.figure.std is None or e.figure.std >= 0, e
        if e.metric.startswith("accuracy"):
            assert 0 < e.figure.mean < 1, e


def test_every_file_has_a_source_and_every_source_a_file() -> None:
    files = {f.name.removesuffix(".csv") for f in FOLDER.iterdir() if f.name.endswith(".csv")}
    assert files == set(published_tables())


def test_the_means_of_table_three_are_those_that_the_paper_counts_wins_with() -> None:
    """The paper's own count of best cells under IID (FedAvg 2, FedProx 3, SCAFFOLD 5, FedNova 3) comes out again."""
    with (FOLDER / "niid_bench_table3.csv").open() as lines:  # type: ignore[attr-defined]
        iid = [r for r in csv.DictReader(lines) if r["partition"] == "iid"]
    wins = dict.fromkeys(("fedavg", "fedprox", "scaffold", "fednova"), 0)
    for data in {r["data"] for r in iid}:
        cells = {r["algorithm"]: float(r["mean"]) for r in iid if r["data"] == data}
        for name, mean in cells.items():
            wins[name] += mean == max(cells.values())
    assert wins == {"fedavg": 2, "fedprox": 3, "scaffold": 5, "fednova": 3}


def test_an_unknown_table_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="niid_bench_table3"):
        published_table("niid")


# The verdict.

IID = "fmnist/iid/fedavg"  # 89.6 +- 0.3 over 3 runs


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((0.896, 0.896, 0.896), "agrees"),
        ((0.8859, 0.8862, 0.8863), "agrees"),  # 0.99 points below: inside of the margin
        ((0.8855, 0.8855, 0.8858), "differs"),  # 1.04 points below
        ((0.9070, 0.9070, 0.9070), "differs"),
        ((0.84, 0.90, 0.88), "agrees"),  # 2.27 points below, but two standard errors are 3.5
        ((0.8865,), "agrees"),
        ((0.8855,), "differs"),  # one seed: their deviation twice, 2 sqrt(0.3^2/3 + 0.3^2) = 0.69 points
    ],
)
def test_a_cell_agrees_within_the_margin_or_two_standard_errors(values: tuple[float, ...], verdict: str) -> None:
    assert row(results(cell(IID, *values)), IID).verdict == verdict


def test_one_seed_of_ours_is_taken_to_spread_as_theirs_do() -> None:
    name = "fmnist/classes(2)/fedavg"  # 77.3 +- 4.9
    found = row(results(cell(name, 0.69)), name)
    assert found.allowed == pytest.approx(2 * 4.9 * sqrt(1 / 3 + 1))
    assert found.verdict == "agrees"


def test_the_best_round_agrees_where_the_last_does_not() -> None:
    found = row(results(cell(IID, 0.8, 0.8, 0.8, best=(0.895, 0.896, 0.897))), IID)
    assert found.verdict == "agrees"
    assert found.gap is not None
    assert found.gap.when == "best"
    assert found.ours_last == MeanOverSeeds(pytest.approx(80), 0.0, 3)
    assert found.ours_best == MeanOverSeeds(pytest.approx(89.6), pytest.approx(0.1), 3)


def test_a_difference_is_given_in_both_deviations_and_in_the_scale_of_the_suite() -> None:
    found = row(results(cell(IID, 0.90, 0.91, 0.92)), IID)
    assert found.ours_last == MeanOverSeeds(pytest.approx(91), pytest.approx(1), 3)
    assert found.theirs is not None
    assert (found.theirs.mean, found.theirs.std) == (pytest.approx(89.6), pytest.approx(0.3))
    assert found.difference == pytest.approx(1.4)
    assert found.in_theirs == pytest.approx(1.4 / 0.3)
    assert found.in_ours == pytest.approx(1.4)
    assert found.allowed == pytest.approx(2 * sqrt(0.3**2 / 3 + 1 / 3))


def test_deviations_of_zero_and_single_seeds_divide_nothing() -> None:
    name = "adult/classes(1)/scaffold"  # 23.6 +- 0.0
    same, one = (row(results(cell(name, *v)), name) for v in ((0.24, 0.24), (0.24,)))
    assert one.ours_last == MeanOverSeeds(24, None, 1)
    assert (same.in_theirs, same.in_ours, one.in_ours) == (None, None, None)
    assert same.allowed == one.allowed == 100 * MARGIN


def test_a_metric_that_is_not_shown_in_per_cent_has_a_relative_margin() -> None:
    name = "stackoverflow/natural/scaffold"  # perplexity 62.43 +- 0.09
    made = results(metric="perplexity", higher=False, scale=1.0, reference="pfl_research_tables")
    for value, verdict in ((62.0, "agrees"), (63.2, "differs")):
        assert row(replace(made, cells=(cell(name, value),)), name).verdict == verdict


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5), st.sampled_from(published_table("niid_bench_table3").entries))
def test_a_verdict_is_what_its_own_numbers_say(values: list[float], entry: Any) -> None:
    name = "/".join(entry.at[axis] for axis in AXES)
    found = row(results(cell(name, *values)), name)
    assert found.theirs is not None
    near = [abs(ours.mean - found.theirs.mean) <= allowed_for(found.theirs, ours) for ours in both(found)]
    assert found.verdict == ("agrees" if any(near) else "differs")
    assert found.allowed is not None
    assert found.allowed >= 100 * MARGIN


def test_a_smaller_size_is_not_judged() -> None:
    found = row(results(cell(IID, 0.2, 0.2), size="smoke"), IID)
    assert found.words == "not run: the size 'smoke' does not have the published settings"
    assert found.ours_last == MeanOverSeeds(20, 0.0, 2)


def test_a_smaller_size_that_says_how_it_deviates_is_judged_and_says_so() -> None:
    shorter = {"size": "short", "deviates": "5 of 50 rounds"}
    assert row(results(cell(IID, 0.2, 0.2), **shorter), IID).words == "differs: 5 of 50 rounds"
    theirs = row(results(cell(IID, 0.2)), IID).theirs
    assert theirs is not None
    close = theirs.mean / 100
    assert row(results(cell(IID, close, close), **shorter), IID).words == "agrees: 5 of 50 rounds"


def test_what_was_not_run_is_listed_with_its_reason_where_there_is_one() -> None:
    made = results(cell(IID, 0.9), missing={"svhn/*": "no package carries SVHN"})
    assert row(made, "svhn/classes(1)/fednova").words == "theirs cannot be had: no package carries SVHN"
    assert row(made, "mnist/iid/fedavg").words == "not run"
    assert len(compare_with_published(made)) == len(published_table("niid_bench_table3").entries)


def test_a_cell_that_failed_says_why() -> None:
    failed = cell(IID, failed={"seed 0": "out of memory"})
    assert row(results(failed), IID).words == "not run: seed 0: out of memory"


def test_a_seed_that_diverged_differs_and_is_counted() -> None:
    assert row(results(cell(IID, math.nan, 0.9, 0.9)), IID).words == "differs: 1 of 3 seeds did not end in a number"


def test_cells_that_nobody_published_have_no_row() -> None:
    made = results(cell("digits/iid/fedavg", 0.9), cell(IID, 0.9))
    assert [r.name for r in compare_with_published(made) if r.ours_last] == [IID]
    assert compare_with_published(replace(made, reference=None)) == ()


# Quirks.

RIGHT, QUIRK = "fmnist/classes(2)/scaffold", "fmnist/classes(2)/scaffold (as published)"


def quirky(*values: float, **changes: Any) -> Cell:
    return cell(QUIRK, *values, quirk="counts steps", stands_for=RIGHT, **changes)


def test_a_quirk_has_a_row_of_its_own_with_its_effect_by_seed() -> None:
    made = results(cell(RIGHT, 0.80, 0.82, 0.84), quirky(0.40, 0.45, 0.50))
    found = row(made, QUIRK)
    assert found.quirk == "counts steps"
    assert found.theirs is not None
    assert found.theirs.mean == pytest.approx(42.8)
    assert found.verdict == "agrees"
    assert found.effect is not None
    assert (found.effect.right, found.effect.seeds, found.effect.paired) == (RIGHT, (0, 1, 2), True)
    assert found.effect.last == MeanOverSeeds(pytest.approx(-37), pytest.approx(3), 3)


def test_a_difference_that_a_quirk_explains_says_so() -> None:
    made = results(cell(RIGHT, 0.81, 0.82, 0.83), quirky(0.40, 0.45, 0.50))
    assert row(made, RIGHT).words == f"differs: a quirk of the published code explains it: {QUIRK} agrees"
    elsewhere = results(cell(RIGHT, 0.81, 0.82, 0.83), quirky(0.40, 0.45, 0.50, block="another"))
    assert row(elsewhere, RIGHT).words == row(made, RIGHT).words
    unhelpful = results(cell(RIGHT, 0.81, 0.82, 0.83), quirky(0.91, 0.92, 0.93))
    assert row(unhelpful, RIGHT).words == "differs"


def test_a_quirk_is_found_in_the_part_of_its_place_that_stands_for_another() -> None:
    assert quirky(0.4).oddity == "scaffold (as published)"
    scrambled = cell("fmnist (scrambled)/classes(2)/scaffold", 0.4, quirk="scrambled", stands_for=RIGHT)
    assert scrambled.oddity == "fmnist (scrambled)"


def test_only_seeds_of_both_count_towards_an_effect() -> None:
    right = cell(RIGHT, 0.8, 0.8, 0.8)
    effect = row(results(replace(right, runs=right.runs[1:]), quirky(0.1, 0.3, 0.3)), QUIRK).effect
    assert effect is not None
    assert effect.seeds == (1, 2)
    assert effect.last == MeanOverSeeds(pytest.approx(-50), pytest.approx(0), 2)
    assert row(results(quirky(0.1)), QUIRK).effect is None


def test_a_quirk_of_the_data_finds_its_right_cell_too() -> None:
    right = cell("cifar10/iid/fedavg", 0.76)
    scrambled = cell("cifar10 (scrambled)/iid/fedavg", 0.70, quirk="planes as pixels", stands_for=right.name)
    made = results(right, scrambled, reference="pfl_research_tables")
    assert right_of(made, scrambled) == right
    assert [row(made, c.name).verdict for c in made.cells] == ["differs", "agrees"]
    assert "cifar10 (scrambled)/iid/fedavg agrees" in row(made, right.name).why


def test_a_quirk_that_nobody_published_shows_its_effect() -> None:
    right, wrong = cell("digits/iid/scaffold", 0.9), cell("digits/iid/scaffold (as published)", 0.5)
    made = results(right, replace(wrong, quirk="counts steps", stands_for=right.name))
    found = row(made, wrong.name)
    assert (found.verdict, found.theirs) == ("not published", None)
    assert found.effect is not None
    assert found.effect.best == MeanOverSeeds(pytest.approx(-40), None, 1)


def test_the_new_fields_survive_the_file(tmp_path: Path) -> None:
    made = results(quirky(0.5), missing={"svhn/*": "why"})
    assert read_results(write_results(made, tmp_path / "results.json")) == made


def test_a_figure_knows_its_paper() -> None:
    found = published_figure("niid_bench_table3", place(IID))
    assert isinstance(found, Published)
    assert "Non-IID Data Silos" in found.source.paper
    assert (found.table, found.runs) == ("3", 3)
