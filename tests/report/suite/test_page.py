"""The page of a suite: what a reader is told, checked against numbers worked out by other means."""

import html
import itertools
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from atoll.records import Cell, Results, read_results
from atoll.report import prose
from atoll.report.suite import beside_published, client_spread, curves, headline, pairwise, ranking, tuning
from atoll.report.suite.page import page
from atoll.report.suite.score_table import score_table
from atoll.report.suite.scores import decimals, marks, of_cell
from atoll.report.text_table import TextCell
from atoll.stats import t_interval
from tests.support.page_parser import Loads
from tests.support.paths import GOLDEN_PAGES, ROOT
from tests.support.suite_example import METHODS, QUIRK, ROWS, cell, example, small, trace, tried

EXAMPLE = example()


@cache
def drawn() -> str:
    """The page of the example."""
    return page(EXAMPLE)


def said(text: str) -> str:
    """A page's words without its tags."""
    plain = re.sub(r"<svg.*?</svg>|<style.*?</style>", " ", text, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", plain)).split())


def of(*cells: Cell, **changed: object) -> Results:
    """Results with these cells."""
    return replace(EXAMPLE, cells=cells, **changed)  # type: ignore[arg-type]


def row(*means: float, methods: tuple[str, ...] = METHODS, **more: object) -> list[Cell]:
    """One row with these means and a spread of half a point."""
    return [
        cell(("fmnist", "iid"), m, mean, salt, **more)  # type: ignore[arg-type]
        for salt, (m, mean) in enumerate(zip(methods, means, strict=False))
    ]


def entries(results: Results, block: str = "images", when: str = "last", row: int = 0) -> dict[str, TextCell]:
    """The entries of one row of the table, by method."""
    found = score_table(results, block, when)  # type: ignore[arg-type]
    return dict(zip((c.title for c in found.columns[1:]), found.rows[row].cells[1:], strict=True))


def with_values(one: Cell, *last: float) -> Cell:
    """The cell with these values at the end of its runs, a seed each."""
    runs = tuple(replace(trace(50, seed), values=(*trace(50, seed).values[:-1], v)) for seed, v in enumerate(last))
    return replace(one, runs=runs, wanted=len(last))


def test_the_page_loads_nothing_its_tags_close_and_its_ids_are_its_own() -> None:
    found = Loads()
    found.feed(drawn())
    assert found.open == []
    assert not {"script", "link", "img", "iframe", "object"} & set(found.tags)
    assert all(address.startswith("#") for address in found.fetched)
    assert all(address.startswith("#") for address in re.findall(r"url\(([^)]*)\)", drawn()))
    assert not re.search(r"https?://|@import", drawn())
    assert len(found.ids) == len(set(found.ids))
    assert {address[1:] for address in found.fetched} <= set(found.ids)


def test_every_picture_has_words_and_every_heading_of_a_table_a_scope() -> None:
    pictures = re.findall(r"<svg[^>]*>", drawn())
    assert len(pictures) > 20
    assert all('aria-hidden="true"' in one or re.search(r'role="img" aria-label="[^"]{10,}"', one) for one in pictures)
    headings = re.findall(r"<th\b[^>]*>", drawn())
    assert headings
    assert all("scope=" in one for one in headings)


@pytest.mark.slow
@pytest.mark.parametrize("golden", GOLDEN_PAGES, ids=lambda path: path.stem)
def test_golden_pages_have_all_their_figures(golden: Path) -> None:
    words, results = r'<svg role="img" aria-label="([^"]*)"', ROOT / "results" / golden.stem / "results.json"
    assert re.findall(words, page(read_results(results))) == re.findall(words, golden.read_text("utf-8"))


def test_whatever_a_suite_holds_is_escaped() -> None:
    evil = "<script>alert(1)</script>"
    cells = [replace(c, block=evil, path={**c.path, "data": evil, "algorithm": evil + c.method}) for c in row(80, 81)]
    bad = replace(cells[0], failed={"seed 0": evil}, wanted=4, quirk=evil, settings={evil: evil})
    text = page(of(bad, *cells[1:], title=evil, about=evil, made={"command": evil, evil: {evil: evil}}))
    assert "<script" not in text
    assert text.count("&lt;script&gt;") > 10


def test_the_head_says_what_was_run_and_how_it_was_tuned() -> None:
    assert "suite niid-bench · full size · 23 cells · 64 runs · 20 rounds · 1 to 3 seeds each" in said(drawn())
    assert "fedavg, fedprox, scaffold and fednova on 5 settings (data and partition) in 2 parts" in said(drawn())
    assert "Settings: chosen on validation data, examples kept from training. 4 trials for fedprox; not tuned:" in said(
        drawn()
    )
    assert "the paper's way: best on the test data" in tuning.budget(replace(EXAMPLE, tuning="paper"))
    assert "nothing was tuned" in tuning.budget(replace(EXAMPLE, tuning="none"))


def test_unequal_budgets_are_called_so() -> None:
    three = replace(EXAMPLE.cells[1], trials=EXAMPLE.cells[1].trials[:3])
    assert "not equal" not in tuning.budget(EXAMPLE)
    assert "The budgets are not equal." in tuning.budget(of(three, *EXAMPLE.cells[2:]))


def test_failed_missing_and_short_cells_are_counted_with_their_reason() -> None:
    absent = replace(EXAMPLE.cells[0], runs=())
    notes = " ".join(headline.notes(of(absent, *EXAMPLE.cells[1:])))
    assert "1 cell failed: fmnist/iid/fednova (CUDA out of memory: 3 GB asked, 1 GB free)." in notes
    assert "1 cell not run: fmnist/iid/fedavg." in notes
    assert "1 cell has fewer seeds than asked for: fmnist/dirichlet(0.5)/fednova (stopped by the budget)." in notes
    assert "All 4 cells have results." in headline.notes(small())


def test_a_smoke_size_says_that_it_proves_nothing() -> None:
    assert "smoke size" in headline.notes(replace(EXAMPLE, size="smoke"))[0]
    assert not any("size:" in note for note in headline.notes(EXAMPLE))


def test_a_size_that_says_how_it_deviates_says_it_first() -> None:
    note = headline.notes(replace(EXAMPLE, size="short", deviates="5 of 50 rounds"))[0]
    assert note == "This is the short size, not the published settings: 5 of 50 rounds."


def test_a_row_whose_seeds_met_other_partitions_is_called_not_paired() -> None:
    cells = row(80, 81)
    other = replace(cells[1], runs=tuple(replace(run, partition=f"q{run.seed}") for run in cells[1].runs))
    assert not any("Not paired" in note for note in headline.notes(of(*cells)))
    assert any("Not paired: in fmnist / iid" in note for note in headline.notes(of(cells[0], other)))


def test_an_unfinished_run_is_named() -> None:
    odd = replace(EXAMPLE.cells[0], runs=(replace(EXAMPLE.cells[0].runs[0], status="diverged in round 3"),))
    assert any("fmnist/iid/fedavg seed 0 (diverged in round 3)" in note for note in headline.notes(of(odd)))


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=9))
def test_a_score_is_the_mean_and_spread_with_students_interval(values: list[float]) -> None:
    found = of_cell(with_values(row(80)[0], *values), of(scale=1.0), "last")
    assert found is not None
    assert found.mean == pytest.approx(np.mean(values))
    assert found.std == pytest.approx(np.std(values, ddof=1))
    assert found.half == pytest.approx(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))


@pytest.mark.parametrize("when", ["last", "best"])
@pytest.mark.parametrize("higher", [True, False])
def test_the_mark_goes_to_the_best_mean_and_to_intervals_that_reach_it(when: str, higher: bool) -> None:
    results = replace(EXAMPLE, higher=higher)
    for block in results.blocks():
        for number, cells in enumerate(results.rows(block).values()):
            rivals = {}
            for method, one in cells.items():
                if one.quirk is None and len(one.runs) > 1:
                    pick = (max if higher else min) if when == "best" else (lambda v: v[-1])
                    values = [100 * pick(run.values) for run in one.runs]
                    rivals[method] = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
            top = (max if higher else min)(rivals, key=lambda m: sum(rivals[m]))
            low, high = rivals[top]
            assert {m: mark for m, mark in marks(results, cells, when).items() if mark == "best"} == {top: "best"}  # type: ignore[arg-type]
            for method, entry in entries(results, block, when, number).items():
                near = method in rivals and rivals[method][0] <= high and rivals[method][1] >= low
                assert entry.mark == ("best" if method == top else "near" if near else ""), (number, method)


def test_a_single_seed_is_labelled_and_never_the_best_however_good() -> None:
    lucky = replace(row(99)[0], runs=row(99)[0].runs[:1])
    found = entries(of(lucky, *row(80, 81, 82)[1:]))
    assert (found["fedavg"].mark, found["fedavg"].remarks) == ("", ("1 seed of 3",))
    assert found["scaffold"].mark == "best"
    assert "87.7" in drawn()
    assert "1 seed of 3" in said(drawn())


def test_a_quirk_is_shown_and_never_the_best_however_good() -> None:
    cells = row(99, 80, 81)
    results = of(replace(cells[0], quirk=QUIRK), *cells[1:])
    assert entries(results)["fedavg"].mark == ""
    assert "fedavg" not in [line.cells[0].text for line in ranking.ranking(results).wins.rows]
    assert not any("fedavg" in (line.a, line.b) for line in pairwise.certainty(results).all)
    assert QUIRK in said(page(results))


def test_equal_means_are_both_the_best() -> None:
    cells = row(80, 80)
    twin = replace(cells[1], runs=cells[0].runs)
    assert [entry.mark for entry in entries(of(cells[0], twin)).values()] == ["best", "best"]


def test_a_method_alone_in_its_row_has_nobody_to_beat() -> None:
    results = of(*row(80))
    assert entries(results)["fedavg"].mark == ""
    assert ranking.ranking(results) is None
    assert pairwise.certainty(results) is None
    assert "Which method wins" not in page(results)


def test_a_diverged_seed_is_said_and_loses_every_row() -> None:
    cells = row(90, 80, 81)
    results = of(with_values(cells[0], 0.9, 0.9, math.nan), *cells[1:])
    lost = entries(results)["fedavg"]
    assert (lost.text, lost.spread, lost.detail) == ("diverged", "", "")
    assert ranking.ranks(ranking.contests(results, "last"), METHODS[:3], higher=True)["fedavg"] == 3.0
    assert "diverged" in said(page(results))


def test_failed_cells_carry_their_reason_into_the_table() -> None:
    assert re.search(
        r'<td class="score failed">failed<small>CUDA out of memory: 3 GB asked, 1 GB free</small>', drawn()
    )


def test_an_interval_of_a_share_ends_at_a_hundred_per_cent() -> None:
    high = of_cell(next(c for c in EXAMPLE.cells if c.name == "fcube/synthetic/scaffold"), EXAMPLE, "last").high
    assert high > 100
    assert entries(EXAMPLE, "tabular")["scaffold"].detail.endswith(" to 100.00")


@given(st.floats(1e-6, 1e3), st.booleans())
def test_decimals_show_two_digits_of_the_spread(std: float, percent: bool) -> None:
    places = decimals(percent, [t_interval([1.0, 1.0 + std * math.sqrt(2)])])
    assert places in ((1, 2) if percent else range(7))
    if not percent and 2e-5 < std < 10:
        assert 9.9 <= std * 10**places < 101


def test_wins_at_the_foot_of_the_table_count_its_stars() -> None:
    for when in ("last", "best"):
        shown = score_table(EXAMPLE, "images", when)  # type: ignore[arg-type]
        for i, column in enumerate(shown.columns[1:], start=1):
            stars = sum(one.cells[i].mark == "best" for one in shown.rows)
            assert shown.foot.cells[i].text == ("" if column.title == "scaffold (as published)" else f"{stars} of 3")


def test_average_ranks_are_those_of_scipy_over_full_rows() -> None:
    rows = ranking.contests(EXAMPLE, "last")
    same, complete = ranking.comparable(rows)
    assert (same, len(complete)) == (["fedavg", "fedprox", "scaffold"], 5)  # 15 entries; with fednova 3 rows of 4: 12
    means = np.array([[rows[name][m].mean for m in same] for name in complete])
    expected = np.mean([stats.rankdata(-line) for line in means], axis=0)
    assert list(ranking.ranks({n: rows[n] for n in complete}, same, higher=True).values()) == pytest.approx(expected)
    reverse = np.mean([stats.rankdata(line) for line in means], axis=0)
    assert list(ranking.ranks({n: rows[n] for n in complete}, same, higher=False).values()) == pytest.approx(reverse)


def test_wilcoxons_p_of_every_pair_is_that_of_scipy_corrected_by_holm() -> None:
    found = ranking.ranking(EXAMPLE)
    rows = list(ranking.contests(EXAMPLE, "last").values())
    means = {m: [line[m].mean for line in rows] for m in METHODS[:3]}
    expected = [stats.wilcoxon(means[a], means[b]).pvalue for a, b in itertools.combinations(means, 2)]
    assert [float(line.cells[3].text) for line in found.wilcoxon.rows] == pytest.approx(expected, abs=0.005)
    order = np.argsort(expected)
    holm, worst = [0.0] * 3, 0.0
    for place, i in enumerate(order):
        worst = max(worst, min(1.0, (3 - place) * expected[i]))
        holm[i] = worst
    assert [float(line.cells[4].text) for line in found.wilcoxon.rows] == pytest.approx(holm, abs=0.005)


def test_friedmans_p_in_the_text_is_that_of_iman_and_davenport() -> None:
    rows = list(ranking.contests(EXAMPLE, "last").values())
    columns = [[line[m].mean for line in rows] for m in METHODS[:3]]
    chi2, N, k = stats.friedmanchisquare(*columns).statistic, 5, 3
    f = (N - 1) * chi2 / (N * (k - 1) - chi2)
    assert f"Friedman's test: p = {stats.f.sf(f, k - 1, (k - 1) * (N - 1)):.2f}" in said(drawn())


def test_the_largest_full_table_is_ranked_and_what_was_left_out_is_said() -> None:
    cells = [*row(80, 81, 82), *(replace(c, path={**c.path, "partition": "b"}) for c in row(80, 81, 82))]
    odd = [replace(c, path={**c.path, "partition": "c"}) for c in row(80, 81)]
    told = " ".join(ranking.ranking(of(*cells, *odd)).told)
    assert "over 2 rows that fedavg, fedprox and scaffold all have" in told
    assert "Left out, since a method is missing there: fmnist / c." in told


@pytest.mark.parametrize("higher", [True, False])
def test_probabilities_are_those_of_students_t_on_paired_differences(higher: bool) -> None:
    results = of(*row(80.0, 81.2), higher=higher)
    line = pairwise.certainty(results).top[0]
    assert (line.a, line.b) == (("fedprox", "fedavg") if higher else ("fedavg", "fedprox"))
    a, b = ({c.method: np.array([100 * r.last for r in c.runs]) for c in results.cells}[m] for m in (line.a, line.b))
    d = (a - b) * (1 if higher else -1)
    t = stats.t(2, d.mean(), stats.sem(d))
    assert line.posterior.p_a == pytest.approx(t.sf(1))
    assert line.posterior.p_equal == pytest.approx(t.cdf(1) - t.cdf(-1))
    assert line.posterior.p_b == pytest.approx(t.cdf(-1))
    assert sum(line.widths) == pytest.approx(100, abs=0.2)
    assert line.difference == f"{(a - b).mean():+.2f}".replace("-", "−")


def test_the_two_best_of_every_row_are_compared_and_every_pair_is_listed() -> None:
    found = pairwise.certainty(EXAMPLE)
    for line, scores in zip(found.top, ranking.contests(EXAMPLE, "last").values(), strict=True):
        assert [line.a, line.b] == sorted(scores, key=lambda m: -scores[m].mean)[:2]
    assert len(found.all) == 3 + 3 + 3 * 6  # rows of three methods, and of four
    assert all(line.row in drawn() for line in found.top)


def test_order_that_holds_counts_seeds_whose_absence_changes_the_winner() -> None:
    a = with_values(row(80)[0], 0.80, 0.80, 0.90)
    b = with_values(row(80, 80)[1], 0.81, 0.81, 0.81)
    found = pairwise.certainty(of(a, b))
    assert found.top[0].a == "fedavg"
    assert found.top[0].holds == "2 of 3"  # without seed 2 fedprox leads
    assert "changes the order of a row's methods in 1 of 3 cases" in " ".join(found.told)


def test_equal_runs_are_certainly_equal_and_need_no_more_seeds() -> None:
    cells = row(80, 80)
    line = pairwise.certainty(of(cells[0], replace(cells[1], runs=cells[0].runs))).top[0]
    assert (line.p, line.seeds) == (("< 1 %", "> 99 %", "< 1 %"), "settled: equal")


def test_the_rope_is_one_point_in_per_cent_and_one_per_cent_else() -> None:
    assert pairwise.practical(EXAMPLE) == 1.0
    cells = [with_values(c, *values) for c, values in zip(row(1, 1), ([0.39, 0.41], [0.40, 0.42]), strict=True)]
    assert pairwise.practical(of(*cells, scale=1.0)) == 0.004


def test_a_curve_is_the_mean_over_seeds_at_common_rounds() -> None:
    runs = EXAMPLE.cells[0].runs
    short = replace(runs[2], **{k: getattr(runs[2], k)[::2] for k in ("rounds", "values", "bytes", "seconds")})
    line = curves.line("fedavg", [runs[0], runs[1], short], "rounds", 100)
    assert line.x.tolist() == list(range(1, 21, 2))
    expected = [np.mean([100 * runs[s].values[r - 1] for s in range(3)]) for r in range(1, 21, 2)]
    assert line.mean == pytest.approx(expected)


def test_curves_by_bytes_are_in_megabytes_and_by_seconds_a_share_of_the_stack() -> None:
    prox = next(c for c in EXAMPLE.cells if c.method == "fedprox")
    assert {run.together for run in prox.runs} == {12}
    assert curves.line("fedprox", prox.runs, "bytes", 1).x[-1] == pytest.approx(20.0)  # 2e7 bytes
    assert curves.line("fedprox", prox.runs, "seconds", 1).x[-1] == pytest.approx(10.0)  # 120 s for 12 runs
    assert "divided by its runs" in said(drawn())
    assert next(c for c in client_spread.costs(EXAMPLE) if c.method == "fedprox").stacks == (12,)


def test_long_curves_are_thinned_but_keep_both_ends() -> None:
    line = curves.line("fedavg", [trace(80, 0, rounds=500)], "rounds", 1)
    assert (line.x[0], line.x[-1], len(line.x)) == (1, 500, curves.POINTS)


def test_many_rows_are_not_all_drawn_and_the_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "MOST", 4)
    many = [replace(c, path={**c.path, "partition": f"p{i}"}) for i in range(6) for c in row(80)]
    text = page(of(*many))
    assert "4 of 6 rows are drawn" in said(text)
    assert len(re.findall(r'aria-label="accuracy \(%\) against round', text)) == 4
    assert "rows are drawn" not in said(drawn())


def test_every_row_has_a_curve_by_round_bytes_and_seconds() -> None:
    for cost in ("round", "MB sent", "seconds of training"):
        for name in ROWS:
            assert re.search(
                rf'aria-label="accuracy \(%\) against {cost}[^"]*{re.escape(prose.row_name(name))}', drawn()
            )


def test_client_spread_is_the_mean_over_seeds_in_the_shown_scale() -> None:
    found = client_spread.clients(EXAMPLE, "images")
    assert [column.group for column in found.columns[1::2]] == [*METHODS[:3], "fednova", "scaffold (as published)"]
    iid = [cell.text for cell in next(one for one in found.rows if one.cells[0].text == "fmnist / iid").cells]
    worst = np.mean([100 * run.clients["worst_decile"] for run in EXAMPLE.cells[0].runs])
    assert iid[1:3] == [f"{worst:.1f}", "4.0"]
    assert iid[7:9] == ["—", "—"]  # fednova failed


def test_trials_that_became_runs_are_not_paid_twice() -> None:
    again = replace(
        EXAMPLE.cells[1], trials=tuple(replace(t, runs=EXAMPLE.cells[1].runs[:1]) for t in tried(80, 0)["trials"])
    )
    assert client_spread.costs(of(again))[0].trials == 0
    prox = next(c for c in client_spread.costs(EXAMPLE) if c.method == "fedprox")
    assert (prox.runs, prox.trials, prox.spent, prox.tuning) == (15, 20, pytest.approx(350), pytest.approx(200))


@pytest.mark.parametrize(("higher", "best"), [(True, 0), (False, 3)])
def test_sensitivity_counts_from_the_best_setting_of_the_row(higher: bool, best: int) -> None:
    scores = [0.9, 0.8, 0.7, 0.1]
    trials = tuple(replace(t, score=s) for t, s in zip(tried(80, 0)["trials"], scores, strict=True))
    one = tuning.tried(of(replace(EXAMPLE.cells[1], trials=trials), higher=higher))[0]
    assert one.lost == pytest.approx([-100 * abs(s - scores[best]) for s in scores])
    assert one.labels[one.chosen] == "mu = 0.01"


def test_a_setting_that_diverged_everywhere_leaves_a_gap_and_not_a_crash() -> None:
    cells = row(80, 81)
    trials = tried(80, 0)["trials"]
    broken = replace(
        cells[1], trials=(*trials[:3], replace(trials[3], score=math.nan)), settings={"algorithm.mu": 0.01}
    )
    text = page(of(cells[0], broken))
    assert "mu = 1: diverged" in said(text)
    assert "median over rows: mu = 0.001: -0.1; mu = 0.01: -0; mu = 0.1: -0.6; mu = 1: nan." in text


def test_runs_of_one_round_and_runs_that_never_were_finite_make_a_page() -> None:
    one, two, three = row(80, 81, 82)
    short = replace(one, runs=tuple(trace(80, seed, rounds=1) for seed in range(3)))
    lost = replace(two, runs=tuple(replace(run, values=(math.nan,) * len(run.values)) for run in two.runs))
    text = said(page(of(short, lost, three)))
    assert "1 to 20 rounds" in text
    assert "diverged" in text


def test_settings_that_were_tried_out_of_order_are_drawn_in_order() -> None:
    shuffled = replace(EXAMPLE.cells[1], trials=EXAMPLE.cells[1].trials[::-1])
    assert tuning.tried(of(shuffled))[0].labels == ("mu = 0.001", "mu = 0.01", "mu = 0.1", "mu = 1")


def test_every_setting_tried_is_on_the_page_with_its_score() -> None:
    cell_ = next(c for c in EXAMPLE.cells if c.trials)
    for trial in cell_.trials:
        assert f"{prose.settings(trial.settings)}: {100 * trial.score:.2f}" in said(drawn())


def compared(name: str, theirs: tuple[float, float | None] | None, verdict: str, **more: object) -> SimpleNamespace:
    """A row as `atoll.records.versus_published` gives it."""
    plain = dict.fromkeys(("ours_last", "ours_best", "gap", "difference", "allowed", "in_theirs", "in_ours", "effect"))
    published = None if theirs is None else SimpleNamespace(mean=theirs[0], std=theirs[1])
    return SimpleNamespace(
        name=name,
        block="",
        theirs=published,
        verdict=verdict,
        **{**plain, "why": "", "quirk": None, "explained": False, **more},
    )


def test_the_comparison_with_the_paper_is_shown_with_its_verdicts() -> None:
    ours = SimpleNamespace(mean=89.2, std=0.3, n=3)
    ran = {
        "ours_last": ours,
        "ours_best": ours,
        "difference": -0.4,
        "allowed": 1.0,
        "in_theirs": -4.0,
        "in_ours": -1.3333,
    }
    effect = SimpleNamespace(right="fmnist/iid/scaffold", seeds=(0, 1, 2), last=ours, best=ours, paired=True)
    rows = [
        compared("fmnist/iid/fedavg", (89.6, 0.1), "agrees", **ran),
        compared("svhn/iid/fedavg", (88.0, None), "cannot be had", why="no package carries SVHN"),
        compared("fmnist/iid/scaffold (as published)", (80.0, 0.1), "differs", **ran, quirk=QUIRK, effect=effect),
        compared("fmnist/iid/new", None, "not published", **ran),
    ]
    found = beside_published.shown(EXAMPLE, rows)  # type: ignore[arg-type]
    texts, others = ([[c.text for c in line.cells] for line in table.rows] for table in (found.rows, found.others))
    assert [line[0] for line in texts] == [rows[0].name, rows[2].name, rows[3].name]
    assert texts[0][1:8] == ["89.60 ± 0.10", "89.20 ± 0.30", "89.20 ± 0.30", "−0.40", "1.00", "−4.0", "−1.3"]
    assert [line.cells[8].style for line in found.rows.rows] == ["verdict agrees", "verdict differs", "verdict other"]
    assert "Effect of the quirk at the last round: +89.20 ± 0.30, paired over 3 seeds." in texts[1][9]
    assert others == [["svhn/iid/fedavg", "88.00", "cannot be had", "No package carries SVHN."]]
    # Neither a quirk nor a method that the paper does not have is a cell of the paper.
    assert found.finding == (
        "1 of 1 cell compared agree with the published table niid_bench_table3, 0 differ. "
        "Of its other cells 1 cannot be had."
    )
    rows.append(compared("fmnist/iid/scaffold", (80.0, 0.1), "differs", **ran, explained=True))
    assert "1 differ (1 of them agree with a published quirk). Of" in beside_published.shown(EXAMPLE, rows).finding  # type: ignore[arg-type]


def test_a_suite_without_a_published_table_has_no_such_section() -> None:
    assert beside_published.comparison(replace(EXAMPLE, reference=None)) is None
    assert "Against the paper" not in said(page(replace(small(), reference=None)))


def test_results_without_a_single_run_still_make_a_page() -> None:
    none = [replace(c, runs=(), trials=(), failed={"seed 0": "no data"}) for c in row(80, 81)]
    assert "2 cells failed" in said(page(of(*none)))
    assert "no seeds yet" in said(page(of()))


def test_a_suite_of_one_axis_has_one_row() -> None:
    cells = [replace(c, path={"algorithm": c.method}) for c in row(80, 81)]
    text = said(page(of(*cells, axes=("algorithm",))))
    assert "fedavg and fedprox on one setting" in text


def test_a_loss_is_shown_unscaled_with_its_direction() -> None:
    cells = [with_values(c, v, v + 0.01, v + 0.02) for c, v in zip(row(1, 1), (0.4, 0.5), strict=True)]
    text = said(page(of(*cells, scale=1.0, higher=False, metric="loss")))
    assert "Loss, lower is better" in text
    assert "★ 0.410 ± 0.010" in text


def test_every_digest_and_the_command_stand_on_the_page() -> None:
    assert "atoll bench niid-bench --only 'fmnist/*'" in html.unescape(drawn())
    assert all(f'title="{run.digest}"' in drawn() for c in EXAMPLE.cells for run in c.runs)
    assert "2026-03-01T10:00:00" in drawn()
