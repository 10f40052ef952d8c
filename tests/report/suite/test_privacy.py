"""Privacy on a suite's page and in its files: collected from runs, drawn from results.json, never more than holds."""

import csv
import html
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atoll.records import Cell, Results, Trace, read_results, write_results
from atoll.records.privacy_claims import SIMULATION, claims_for_results
from atoll.report.suite import exports, summary
from atoll.report.suite import privacy_page as privacy
from atoll.report.suite.page import page
from atoll.suites.collect import trace as collected
from tests.report.test_privacy import CANARIES, WHY, canaries, holds
from tests.support.paths import GOLDEN_PAGES, ROOT
from tests.support.suite_example import cell, example, small, trace, tried

COMMITTED = sorted((ROOT / "results").glob("*/results.json"))
pytestmark = pytest.mark.usefixtures("without_figures")
LEVELS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


def suite(axes: tuple[str, ...] = ("data", "epsilon", "algorithm"), **blocks: Any) -> Results:
    """Two methods at six levels and without a mechanism; `blocks`: another block at method_level."""
    cells = []
    for k, method in enumerate(("fedavg", "scaffold")):
        for level in (*LEVELS, None):
            block = {} if level is None else {"client": holds(level * 0.99)}
            held = claims_for_results(blocks.get(f"{method}_{level:g}" if level else method, block))
            runs = tuple(replace(trace(90 - 20 / (level or 40) - k, s, salt=k), privacy=held) for s in (0, 1))
            places = {"data": "digits", "epsilon": str(level or "none"), "algorithm": method}
            cells.append(Cell("main", {axis: places[axis] for axis in axes}, runs, wanted=2))
    return Results("dp", "Accuracy against epsilon", "full", "accuracy", True, axes, tuple(cells), scale=100.0)


def said(text: str) -> str:
    """A page as a reader reads it, without its figures."""
    plain = re.sub(r"<(svg|style)\b.*?</\1>", " ", text, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", plain)).split())


def run_info(block: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    info = {"seed": 0, "digest": "d", "label": "a", "experiment": {}, "engine": {}, "partition": {"digest": "p"}}
    told = {"privacy": block} if block is not None else {}
    return {**info, "status": "finished", **told}, [{"round": 1, "accuracy": 0.5}]


def test_a_run_is_collected_with_what_it_holds(tmp_path: Path) -> None:
    block = {"client": holds(1.23456789), "audit": canaries(0.98765432)}
    found = collected(*run_info(block), "accuracy").privacy
    assert found["client"]["epsilon"] == 1.23457  # up
    assert found["audit"]["epsilon_lower"] == 0.987654  # down
    assert (found["client"]["holds"], found["client"]["unit"], found["client"]["delta"]) == (True, "client", 1e-3)
    results = replace(small(), cells=(replace(small().cells[0], runs=(collected(*run_info(block), "accuracy"),)),))
    assert read_results(write_results(results, tmp_path / "results.json")).cells[0].runs[0].privacy == found


@pytest.mark.parametrize("block", [None, {}])
def test_a_run_without_an_account_leaves_no_word_of_it_in_the_file(tmp_path: Path, block: Any) -> None:
    assert collected(*run_info(block), "accuracy").privacy == {}
    assert '"privacy"' not in write_results(example(), tmp_path / "results.json").read_text()


def test_an_epsilon_that_does_not_hold_is_not_even_collected() -> None:
    block = {"client": holds(7.6543) | {"holds": False, "why": WHY}, "simulates": holds(2.0)}
    found = collected(*run_info(block), "accuracy").privacy
    assert found["client"] == {"holds": False, "unit": "client", "why": WHY}
    assert found["simulates"]["epsilon"] == 2.0
    assert "7.65" not in json.dumps(found)


def unpictured(text: str) -> str:
    return re.sub(r"<svg role.*?</svg>", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("golden", GOLDEN_PAGES, ids=lambda path: path.stem)
def test_golden_pages_stay_as_they_are(golden: Path) -> None:
    """But for the figures, which another version of matplotlib draws differently. See tests/golden/pages/README.md."""
    results = read_results(ROOT / "results" / golden.stem / "results.json")
    assert unpictured(page(results)) == unpictured(golden.read_text("utf-8"))


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.parent.name)
def test_committed_tables_stay_as_they_are(path: Path) -> None:
    results = read_results(path)
    assert exports.as_csv(results) == path.with_name("results.csv").read_text("utf-8")
    assert exports.as_markdown(results) == path.with_name("table.md").read_text("utf-8")
    assert exports.as_latex(results) == path.with_name("table.tex").read_text("utf-8")


def test_a_suite_without_an_account_has_no_word_of_privacy() -> None:
    assert "rivacy" not in said(page(small()))
    assert privacy.section(small()) is None


def test_every_entry_and_the_section_say_what_holds() -> None:
    text = said(page(suite()))
    assert "epsilon 0.495" in text
    assert "digits/0.5/fedavg 0.495 1e-3 client, add-or-remove poisson, 10 of 100 clients" in text
    assert "gaussian_noise, noise multiplier 1.2 pld, 3 rounds" in text
    assert "An epsilon holds in 12 of 14 cells that ran." in text
    assert "not covered by epsilon" in text
    assert "simulation only" not in text
    assert "do not hold the same epsilon" not in text


def test_a_cell_that_does_not_hold_has_words_and_no_number() -> None:
    results = suite(scaffold_4={"client": holds(7.6543) | {"holds": False, "why": WHY}})
    text = said(page(results))
    assert f"digits/4.0/scaffold not private: {WHY}" in text
    assert "In 1 row the methods do not hold the same epsilon" in text
    (lines,) = privacy.series(results, "client").values()
    assert [len(line.points) for line in lines] == [6, 5]
    for file in (text, exports.as_csv(results), exports.as_markdown(results), exports.as_latex(results)):
        assert "7.65" not in file


def test_one_seed_that_does_not_hold_makes_its_cell_so() -> None:
    results = suite()
    runs = results.cells[0].runs
    broken = replace(runs[1], privacy=claims_for_results({"client": {"holds": False, "why": WHY}}))
    first = replace(results.cells[0], runs=(runs[0], broken))
    assert privacy.brief_claims(results.cells[0]) == "epsilon 0.495"
    assert privacy.brief_claims(first) == "not private"
    assert f"digits/0.5/fedavg not private: seed 1: {WHY}" in said(
        page(replace(results, cells=(first, *results.cells[1:])))
    )


def test_what_is_simulated_is_called_so_wherever_it_stands() -> None:
    block = {"client": {"holds": False, "why": "noise_cohort"}, "simulates": holds(3.2101)}
    results = suite(fedavg_4=block)
    text = said(page(results))
    assert "not private; simulates epsilon 3.211" in text
    assert f"digits/4.0/fedavg: {SIMULATION} simulates 3.211" in text
    assert not re.search(r"(?<!simulates )epsilon 3\.21", text)
    line = next(row for row in csv.DictReader(io.StringIO(exports.as_csv(results))) if row["epsilon"] == "4.0")
    assert (line["privacy_epsilon"], line["privacy_unit"]) == ("", "")
    assert SIMULATION in line["privacy"]


def test_the_metric_is_drawn_against_epsilon_along_the_axis_that_has_it() -> None:
    found = privacy.series(suite(), "client")
    assert list(found) == ["digits"]
    assert [line.method for line in found["digits"]] == ["fedavg", "scaffold"]
    for line in found["digits"]:
        assert [point.epsilon for point in line.points] == [0.495, 0.99, 1.98, 3.96, 7.92, 15.84]
        assert line.open is not None  # without a mechanism
    figure = privacy.section(suite()).figures[0][1][0]
    assert figure.alt.startswith("accuracy (%) against epsilon of a client, digits: fedavg ")
    assert " at 0.495, " in figure.alt
    assert " without a mechanism" in figure.alt
    assert [label.get_text() for label in figure.draw().axes[0].get_xticklabels()] == [
        "0.5",
        "0.99",
        "2",
        "4",
        "8",
        "16",
    ]


def test_where_methods_are_what_differs_there_is_one_line() -> None:
    results = suite(("data", "epsilon"))
    results = replace(results, cells=results.cells[:7])
    ((name, lines),) = privacy.series(results, "client").items()
    assert (name, [line.method for line in lines], len(lines[0].points)) == ("digits", [""], 6)
    assert privacy.section(results).figures[0][2] == frozenset()  # and no legend


def test_a_legend_names_the_methods_that_are_drawn() -> None:
    assert privacy.section(suite()).figures[0][2] == {"fedavg", "scaffold"}


def test_cells_of_one_epsilon_are_no_curve() -> None:
    near = {level: 1.0 - 0.0001 * level for level in LEVELS}  # as calibration leaves them
    results = suite(**{f"{m}_{n:g}": {"client": holds(e)} for m in ("fedavg", "scaffold") for n, e in near.items()})
    assert privacy.series(results, "client") == {}
    assert not privacy.uneven(c for c in results.cells if c.path["epsilon"] != "none")
    assert privacy.uneven(results.cells)
    assert privacy.section(results).figures == ()


def test_an_audit_that_contradicts_is_loud_at_the_top_and_in_the_section() -> None:
    assert privacy.alarms(audited(0.9)) == []
    assert "contradict" not in said(page(audited(0.9)))
    text = page(audited(1.1))
    words = "2 audits contradict the accounted epsilon. The first: digits/1.0/fedavg, seed 0: the audit contradicts"
    assert words in said(text[: text.index("</header>")])
    assert words in said(text[text.index("</header>") :])
    assert f"{CANARIES}: at least 1.1 (95 % confidence, delta 1e-3), the largest of 2 seeds" in said(text)


def audited(found: float) -> Results:
    """A suite in which canaries found this much in a cell of epsilon 1."""
    results = suite()
    held = collected(*run_info({"client": holds(1.0), "audit": canaries(found)}), "accuracy").privacy
    cells = [
        replace(c, runs=tuple(replace(r, privacy=held) for r in c.runs)) if c.name == "digits/1.0/fedavg" else c
        for c in results.cells
    ]
    return replace(results, cells=tuple(cells))


def test_trials_that_epsilon_does_not_count_are_said() -> None:
    chosen = replace(cell(("fcube", "iid"), "fedprox", 90, 1, **tried(90, 5)), block="main")
    private = replace(
        chosen, runs=tuple(replace(r, privacy=claims_for_results({"client": holds()})) for r in chosen.runs)
    )
    assert "does not count the trials" in said(page(replace(small(), cells=(private, *small().cells[1:]))))
    assert "does not count the trials" not in said(page(suite()))


def test_the_terminal_counts_the_cells_in_which_an_epsilon_holds() -> None:
    block = {"client": {"holds": False, "why": "noise_cohort"}, "simulates": holds(99.0)}
    caption = str(summary(suite(fedavg_4=block), "main").caption)
    assert "An epsilon holds in 11 of 14 cells (0.495 to 15.84): the page has each." in caption
    assert f"1 cell: {SIMULATION}." in caption
    assert "99" not in caption
    assert "epsilon" not in str(summary(small(), small().blocks()[0]).caption)


def test_a_file_from_before_still_loads() -> None:
    before = [path for path in COMMITTED if "-dp" not in path.parent.name and "-hybrid" not in path.parent.name]
    assert before
    for path in before:
        assert all(run.privacy == {} for one in read_results(path).cells for run in one.runs)
    assert Trace(0, "", (1,), (0.5,), (1.0,), (1.0,)).privacy == {}
