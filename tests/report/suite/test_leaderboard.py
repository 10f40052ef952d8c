"""The leaderboard of many suites, and the commands that draw pages from results."""

import html
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from atoll.errors import RecordError
from atoll.records import Results, read_results, write_results
from atoll.report.suite import leaderboard, write
from atoll.report.suite.leaderboard import board, standings, unique
from tests.support.shell import Shell, shell
from tests.support.suite_example import cell, example, small

pytestmark = pytest.mark.usefixtures("without_figures")
EXAMPLE = example()


def said(text: str) -> str:
    """A page's words without its tags."""
    plain = re.sub(r"<svg.*?</svg>|<style.*?</style>|<script.*?</script>", " ", text, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", plain)).split())


def other(name: str, *means: float, **changed: object) -> Results:
    """Another suite with one row of fedavg, fedprox, scaffold."""
    cells = tuple(
        cell(("digits", "iid"), method, mean, salt)
        for salt, (method, mean) in enumerate(zip(("fedavg", "fedprox", "scaffold"), means, strict=False))
    )
    return replace(EXAMPLE, suite=name, cells=cells, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize("higher", [True, False])
def test_the_leader_of_a_row_has_its_margin_with_a_paired_interval(higher: bool) -> None:
    results = other("a", 80, 84, 70, higher=higher)
    one = standings(results)[0]
    first, second = ("fedprox", "fedavg") if higher else ("scaffold", "fedavg")
    assert (one.best, one.second) == (first, second)
    values = {c.method: np.array([100 * run.last for run in c.runs]) for c in results.cells}
    gaps = (values[first] - values[second]) * (1 if higher else -1)
    assert one.margin == pytest.approx(gaps.mean())
    assert one.margin > 0
    assert one.interval == pytest.approx(stats.t.interval(0.95, 2, gaps.mean(), stats.sem(gaps)))
    assert one.clear == (one.interval[0] > 0)


def test_every_row_with_two_methods_of_two_seeds_is_listed() -> None:
    assert [one.row for one in standings(EXAMPLE)] == [
        *("images: fmnist / iid", "images: fmnist / dirichlet(0.5)", "images: fmnist / classes(2)"),
        *("tabular: fcube / synthetic", "tabular: fcube / iid"),
    ]
    assert standings(other("a", 80)) == []
    lonely = replace(EXAMPLE, cells=tuple(replace(c, runs=c.runs[:1]) for c in EXAMPLE.cells))
    assert standings(lonely) == []


def test_a_published_mistake_leads_no_row() -> None:
    results = other("a", 80, 84, 70)
    marked = replace(results, cells=(results.cells[0], replace(results.cells[1], quirk="wrong"), results.cells[2]))
    assert standings(marked)[0].best == "fedavg"


def test_ranks_and_wins_are_counted_over_suites_whatever_their_metric() -> None:
    up = other("up", 60, 90, 30)
    down = other("down", 60, 90, 30, higher=False, scale=1.0, metric="loss")  # the order is turned around
    text = said(board([up, down]))
    assert "2 suites, 2 rows" in text
    assert "over the 2 of 2 rows that have all of fedavg, fedprox and scaffold" in text
    for line in ("fedavg 2 0 0 2.00", "fedprox 2 1 1 2.00", "scaffold 2 1 1 2.00"):
        assert line in text


def test_a_smoke_size_is_listed_and_not_ranked() -> None:
    text = said(board([other("real", 60, 90, 30), other("quick", 70, 60, 90, size="smoke")]))
    assert "Smoke sizes are listed but not ranked: quick." in text
    assert "Fewer than two rows have the same methods" in text
    assert "fedprox 1 1 1 —" in text
    assert "digits / iid quick smoke" in text


def test_what_is_not_comparable_is_said() -> None:
    text = said(board([other("a", 80, 84, 70), other("b", 80, 84, 70, tuning="paper")]))
    assert "Not comparable: values of different rows or suites." in text
    assert "Suites were tuned in different ways" in text
    again = said(board([other("a", 80, 84, 70), other("a", 80, 84, 70, tuning="paper")]))
    assert "over the 2 of 2 rows" in again  # one suite tuned in two ways is two rows
    assert "tuned in different ways" not in said(board([other("a", 80, 84, 70)]))


def test_results_given_twice_count_once_and_the_last_one_wins() -> None:
    kept, notes = unique([other("a", 80, 84, 70), other("a", 80, 60, 70)])
    assert notes == ["3 cells stood in more than one of the results; the last one given counts."]
    assert [standings(one)[0].best for one in kept] == ["fedavg"]
    assert unique([other("a", 80), other("b", 80)])[1] == []


def test_the_page_loads_nothing_and_escapes_what_it_shows(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    text = leaderboard([EXAMPLE, other(evil, 80, 84, 70, title=evil)], tmp_path / "deep" / "board.html").read_text()
    assert evil not in text
    assert text.count("<script") == 1  # its own, which sorts
    assert not re.search(r"https?://|@import|\bsrc=|<link", text)
    assert all("scope=" in heading for heading in re.findall(r"<th\b[^>]*>", text))


def test_a_leaderboard_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="needs results"):
        leaderboard([], tmp_path / "board.html")


@pytest.fixture
def sh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Type a command in a folder of its own that holds the suites one and two."""
    for name in ("one", "two"):
        write_results(replace(small(), suite=name), tmp_path / name / "results.json")
    return shell(tmp_path, monkeypatch, capsys)


def test_report_draws_a_suites_page_again_into_its_folder(sh: Shell, tmp_path: Path) -> None:
    before = (tmp_path / "one" / "results.json").read_bytes()
    found = sh("report one")
    assert (found.code, found.out) == (0, "Report: one/report.html\n")
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == [
        *("report.html", "results.csv", "results.json", "table.md", "table.tex")
    ]
    assert (tmp_path / "one" / "results.json").read_bytes() == before
    again = write(read_results(tmp_path / "one"), tmp_path / "again")
    assert again.read_bytes() == (tmp_path / "one" / "report.html").read_bytes()


def test_report_takes_results_json_a_title_and_another_place(sh: Shell, tmp_path: Path) -> None:
    found = sh("report one/results.json -o pages/one.html --title 'My table'")
    assert (found.code, found.out) == (0, "Report: pages/one.html\n")
    assert "<h1>My table</h1>" in (tmp_path / "pages" / "one.html").read_text()
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["results.json"]


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("report one elsewhere", 2, "elsewhere is a run and one a suite. Report on each by itself."),
        ("report one two", 2, "takes one suite at a time (got 2). For many: atoll leaderboard."),
        ("report one --figures pdf", 2, "--figures: is for runs."),
        ("leaderboard nowhere", 1, "is not there. Name a folder that `atoll bench` wrote"),
        ("leaderboard", 2, "Missing argument"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_advice(sh: Shell, command: str, code: int, words: str) -> None:
    found = sh(command)
    assert (found.code, "Traceback" in found.err) == (code, False)
    assert words in found.err


def test_results_that_are_broken_are_named(sh: Shell, tmp_path: Path) -> None:
    (tmp_path / "one" / "results.json").write_text("{")
    found = sh("report one")
    assert found.code == 1
    assert "one/results.json: cannot be read" in found.err


def test_the_leaderboard_command_writes_one_page(sh: Shell, tmp_path: Path) -> None:
    found = sh("leaderboard one two/results.json -o pages/board.html")
    assert (found.code, found.out) == (0, "Leaderboard: pages/board.html\n")
    assert "2 suites, 2 rows" in said((tmp_path / "pages" / "board.html").read_text())
