"""What a suite leaves for other programs and for papers: results.csv, table.md, table.tex."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.records import Results, read_results
from atoll.report.render import escaped, literal
from atoll.report.suite import exports, write
from atoll.report.suite.score_table import score_table
from tests.support.suite_example import example, small

pytestmark = pytest.mark.usefixtures("without_figures")
EXAMPLE = example()
ODD = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=12)


def renamed(method: str) -> Results:
    """The example with another name for fedavg."""
    named = {c.name: replace(c, path={**c.path, "algorithm": method}) for c in EXAMPLE.cells if c.method == "fedavg"}
    return replace(EXAMPLE, cells=tuple(named.get(c.name, c) for c in EXAMPLE.cells))


def test_every_run_is_a_line_of_the_csv_with_the_values_as_measured() -> None:
    results = EXAMPLE
    lines = list(csv.DictReader(io.StringIO(exports.as_csv(results))))
    runs = [(cell, run) for cell in results.cells for run in cell.runs]
    assert len(lines) == len(runs) == 64
    for line, (cell, run) in zip(lines, runs, strict=True):
        assert [line["block"], line["data"], line["partition"], line["algorithm"]] == [cell.block, *cell.path.values()]
        assert (int(line["seed"]), line["digest"], line["partition_digest"]) == (run.seed, run.digest, run.partition)
        assert float(line["last"]) == run.values[-1]
        assert float(line["best"]) == max(run.values)
        assert float(line["bytes"]) == run.bytes[-1]
        assert line["settings"] == (json.dumps(dict(cell.settings)) if cell.settings else "")


def test_seconds_in_the_csv_are_a_runs_share_of_its_stack() -> None:
    lines = list(csv.DictReader(io.StringIO(exports.as_csv(EXAMPLE))))
    stacked = [line for line in lines if line["algorithm"] == "fedprox"]
    assert {(line["together"], line["seconds"]) for line in stacked} == {("12", "10.0")}  # 120 s for 12 runs


def test_the_best_round_of_a_loss_is_its_smallest() -> None:
    results = replace(EXAMPLE, higher=False)
    line = next(csv.DictReader(io.StringIO(exports.as_csv(results))))
    assert float(line["best"]) == min(results.cells[0].runs[0].values)


def test_a_clock_has_no_best_round_since_it_only_goes_on(tmp_path: Path) -> None:
    timed = replace(EXAMPLE, metric="clock.end", higher=False)
    assert "last round" in exports.as_markdown(timed)
    assert "best round" not in exports.as_markdown(timed)
    page = write(timed, tmp_path).read_text()
    assert "Best round" not in page
    assert "last round" in page


def test_duckdb_reads_the_csv_and_finds_the_means_of_the_table(tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_text(exports.as_csv(EXAMPLE))
    query = f"""select 100 * avg(last), 100 * stddev_samp(last) from '{tmp_path / "results.csv"}'
                where data = 'fmnist' and partition = 'classes(2)' and algorithm = 'scaffold'"""
    mean, std = duckdb.sql(query).fetchall()[0]
    row = next(r for r in score_table(EXAMPLE, "images", "last").rows if r.cells[0].text == "fmnist / classes(2)")
    scaffold = row.cells[3]
    assert scaffold.value == pytest.approx(mean)
    assert (scaffold.text, scaffold.spread) == (f"{mean:.1f}", f"{std:.1f}")


def test_markdown_has_the_mean_and_spread_of_every_cell_at_both_rounds() -> None:
    results = EXAMPLE
    text = exports.as_markdown(results)
    for cell in results.cells:
        for values in ([run.values[-1] for run in cell.runs], [max(run.values) for run in cell.runs]):
            if len(values) > 1:
                places = 1 if cell.block == "images" else 2
                mean, std = 100 * np.mean(values), 100 * np.std(values, ddof=1)
                assert f"{mean:.{places}f} ± {std:.{places}f}" in text, cell.name
    assert "87.7 (1 seed of 3)" in text
    assert "- fmnist / iid, fednova: failed (CUDA out of memory: 3 GB asked, 1 GB free)." in text
    assert text.count("## images") == text.count("## tabular") == 2
    assert "Settings chosen on validation data." in text


def test_the_best_of_a_row_is_bold_and_what_overlaps_it_is_marked() -> None:
    assert "| fmnist | classes(2) | 74.4 ± 1.2 | 74.4 ± 1.2 | **80.4 ± 0.9** | 70.2 ± 1.1 | 71.1 ± 1.2 |" in (
        exports.as_markdown(EXAMPLE)
    )
    tex = exports.as_latex(EXAMPLE)
    assert r"\textbf{80.4 $\pm$ 0.9} & 70.2 $\pm$ 1.1 & 71.1 $\pm$ 1.2 \\" in tex
    assert r"\underline{88.5 $\pm$ 0.8} & \textbf{88.9 $\pm$ 1.5}" in tex


@given(ODD)
def test_a_markdown_table_keeps_its_columns_whatever_a_method_is_called(name: str) -> None:
    lines = [line for line in exports.as_markdown(renamed(name)).splitlines() if line.startswith("| ")]
    images = [line for line in lines if "fmnist" in line or "scaffold (as published)" in line]
    assert {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in images} == {8}  # two axes, five methods


@given(ODD)
def test_a_latex_table_keeps_its_columns_and_braces_whatever_a_method_is_called(name: str) -> None:
    tex = exports.as_latex(renamed(name))
    body = re.sub(r"\\[&%$#_{}]", "", re.sub(r"(?m)^%.*$", "", tex))
    for tabular in re.findall(r"\\begin\{tabular\}\{(l+r+)\}(.*?)\\end\{tabular\}", body, re.DOTALL):
        columns, inside = tabular
        for line in inside.splitlines():
            if line.endswith(r"\\"):
                assert line.count("&") == len(columns) - 1
                assert line.count("{") == line.count("}")
                assert line.count("$") % 2 == 0
                assert not re.search(r"[#_~^%]", line)


@given(st.text(max_size=30))
def test_escaped_text_has_no_character_that_latex_acts_on(text: str) -> None:
    left = re.sub(r"\\(?:[&%$#_{}]|text\w+\{\})|\{[][*]\}|\$(?:-|\\pm|\\approx)\$", "", escaped(text))
    assert not set(left) & set("&%$#_{}\\~^[]*")


@given(st.text("ab|*_`<\\ ", max_size=12))
def test_literal_text_comes_back_when_backslashes_are_taken_away(text: str) -> None:
    assert re.sub(r"\\(.)", r"\1", literal(text)) == " ".join(text.split())


def test_a_latex_table_is_made_of_booktabs_rules_only() -> None:
    tex = exports.as_latex(EXAMPLE)
    assert tex.count(r"\begin{tabular}") == tex.count(r"\end{tabular}") == 4
    assert tex.count(r"\toprule") == tex.count(r"\midrule") == tex.count(r"\bottomrule") == 4
    assert set(re.findall(r"\\([a-z]+)", re.sub(r"(?m)^%.*$", "", tex))) == {
        *("begin", "end", "toprule", "midrule", "bottomrule", "textbf", "underline", "pm")
    }
    assert all(ord(c) < 128 for line in tex.splitlines() if not line.startswith("%") for c in line)


def test_write_leaves_all_files_and_results_that_read_back(tmp_path: Path) -> None:
    page = write(small(), tmp_path / "deep" / "suite")
    assert page == tmp_path / "deep" / "suite" / "report.html"
    names = sorted(path.name for path in page.parent.iterdir())
    assert names == ["report.html", "results.csv", "results.json", "table.md", "table.tex"]
    assert [cell.name for cell in read_results(page.parent).cells] == [cell.name for cell in small().cells]


def test_write_never_touches_results_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("as it was")
    write(small(), tmp_path)
    assert (tmp_path / "results.json").read_text() == "as it was"


def test_the_same_results_give_the_same_files(tmp_path: Path) -> None:
    first, second = write(small(), tmp_path / "a").parent, write(small(), tmp_path / "b").parent
    for path in sorted(first.iterdir()):
        assert path.read_bytes() == (second / path.name).read_bytes(), path.name
