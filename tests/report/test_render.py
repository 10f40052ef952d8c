"""One table of text, rendered for a terminal, a page, Markdown, LaTeX and CSV."""

import doctest
import io
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from atoll.report import render, text_table
from atoll.report.render import csv, latex, markdown, rich_table
from atoll.report.render_html import html
from atoll.report.text_table import TextCell, TextColumn, TextTable, number_columns, row, text_columns

BEST = TextCell("88.5", "0.8", "best", detail="86.5 to 90.5", value=88.512)
NEAR = TextCell("88.1", "12.5", "near", remarks=("2 of 3 seeds",), hint="out of memory", value=88.1)
FAILED = TextCell("failed", detail="out of memory", style="failed")
SCORES = TextTable(
    (*text_columns("data"), *text_columns("fedavg", "scaffold", kind="score")),
    (row("iid", BEST, NEAR), row("skewed", FAILED, TextCell("—", style="soft", hint="not part of the suite"))),
    title="images, last round",
    notes=("A note.",),
    foot=row("best of its row", "1 of 2", "0 of 2"),
)


def printed(table: TextTable, width: int = 80) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(rich_table(table))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_markdown_marks_the_best_and_says_what_must_be_said() -> None:
    assert markdown(SCORES) == (
        "## images, last round\n\n"
        "| data | fedavg | scaffold |\n"
        "| --- | ---: | ---: |\n"
        "| iid | **88.5 ± 0.8** | 88.1 ± 12.5 (2 of 3 seeds) ≈ |\n"
        "| skewed | failed | — |\n\n"
        "- A note."
    )


def test_latex_marks_the_best_and_says_what_must_be_said() -> None:
    assert latex(SCORES).splitlines() == [
        "% images, last round",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"data & fedavg & scaffold \\",
        r"\midrule",
        r"iid & \textbf{88.5 $\pm$ 0.8} & \underline{88.1 $\pm$ 12.5 (2 of 3 seeds)} \\",
        r"skewed & failed & --- \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_csv_has_numbers_as_they_were_not_as_they_are_shown() -> None:
    assert csv(SCORES) == "data,fedavg,scaffold\niid,88.512,88.1\nskewed,failed,—\n"


def test_a_terminal_has_the_title_the_scores_and_the_notes() -> None:
    lines = printed(SCORES)
    assert lines[0] == "images, last round"
    assert [line.split() for line in lines[2:3]] == [["data", "fedavg", "scaffold"]]
    assert "  iid         *88.5±0.8  88.1±12.5 (2 of 3 seeds)" in lines
    assert lines[-1] == "A note."


def test_numbers_in_a_terminal_stand_under_each_other() -> None:
    rows = (row("a", TextCell("61.0", "12.7")), row("b", TextCell("5.0", "0.1")), row("c", "60.0"), row("d", "—"))
    lines = printed(TextTable((*text_columns("run"), *number_columns("test")), rows))
    assert lines[-5:-1] == ["  a    61.0 ±12.7", "  b     5.0 ± 0.1", "  c    60.0", "  d       —"]


def test_a_page_has_the_detail_the_remark_and_the_hint() -> None:
    page = html(SCORES)
    sign = '<span class="mark" role="img" aria-label="best of its row">★</span> '
    assert f'<td class="score best">{sign}<span class="mean">88.5</span> ± 0.8<small>86.5 to 90.5</small></td>' in page
    assert '<td class="score near" title="out of memory"><span class="mark"' in page
    assert "± 12.5<small>2 of 3 seeds</small></td>" in page
    assert '<td class="score failed">failed<small>out of memory</small></td>' in page
    assert "<caption><span>A note.</span></caption>" in page
    assert "<tfoot>\n<tr><th scope" in page


def test_columns_with_a_common_heading_have_two_lines_of_headings() -> None:
    table = TextTable((TextColumn("run"), *number_columns("mean", "std", group="clients")), (row("a", "1", "2"),))
    page = html(table)
    assert (
        '<tr><th scope="col" rowspan="2">run</th><th scope="colgroup" colspan="2" class="first">clients</th></tr>'
        in page
    )
    assert '<tr><th scope="col" class="number first">mean</th><th scope="col" class="number">std</th></tr>' in page
    assert '<td class="number first">1</td><td class="number">2</td>' in page


def test_a_column_with_spreads_keeps_room_for_them_in_every_row() -> None:
    table = TextTable(
        (*text_columns("run"), *number_columns("x")), (row("a", TextCell("1", "2")), row("b", "3"), row("c", ""))
    )
    page = html(table)
    assert '<td class="number">1 <span class="half">± 2</span></td>' in page
    assert '<td class="number">3 <span class="half"></span></td>' in page
    assert '<td class="number"></td>' in page


def test_words_may_stand_for_all_cells_and_lines_below_a_row() -> None:
    said = TextCell("not private: why", remarks=("Audit: none",), span=2)
    rows = (row("a", said, style="after"), row("b", "1", "2", below=[TextCell("Assumed: x", hint="rests on")]))
    page = html(TextTable(text_columns("run", "epsilon", "delta"), rows))
    assert (
        '<tr class="after"><th scope="row">a</th><td colspan="2"><strong>not private: why</strong><br>Audit: none</td>'
        in page
    )
    assert '<th scope="row" rowspan="2">b</th><td>1</td><td>2</td></tr>' in page
    assert '<tr class="below"><td colspan="2"><div title="rests on">Assumed: x</div></td></tr>' in page
    assert "| a | not private: why (Audit: none) |  |" in markdown(
        TextTable(text_columns("run", "epsilon", "delta"), rows)
    )


def test_code_is_set_as_code_with_the_whole_of_it_as_a_hint() -> None:
    table = TextTable(text_columns("key", "digest", kind="code"), (row("a.b", TextCell("0123", hint="012345")),))
    assert '<th scope="row"><code>a.b</code></th><td><code title="012345">0123</code></td>' in html(table)


def test_a_table_without_headings_has_none() -> None:
    assert "thead" not in html(TextTable(text_columns("", ""), (row("cpu", "2 cores"),)))


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)


@given(st.text(max_size=20))
def test_whatever_a_cell_says_is_text(said: str) -> None:
    cell = TextCell(said, said, "near", said, (said,), said, value=1.0)
    table = TextTable((TextColumn(said or "x"), *text_columns(said, kind="score")), (row(said, cell),), said, (said,))
    tags = Tags()
    tags.feed(html(table))
    assert tags.seen <= {"table", "caption", "span", "thead", "tr", "th", "tbody", "td", "small"}
    printed(table)


def test_rows_may_become_columns() -> None:
    turned = SCORES.transposed("algorithm")
    assert [column.title for column in turned.columns] == ["algorithm", "iid", "skewed"]
    assert [[cell.text for cell in one.cells] for one in turned.rows] == [
        ["fedavg", "88.5", "failed"],
        ["scaffold", "88.1", "—"],
    ]
    assert {column.kind for column in turned.columns[1:]} == {"score"}


@pytest.mark.parametrize("module", [render, text_table])
def test_examples_in_docstrings_run(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted > 0
    assert result.failed == 0
