"""Heat maps of attacks by defences, and the tables of the worst."""

from dataclasses import replace

import pytest

from atoll.report.render import markdown
from atoll.report.suite.exports import as_markdown
from atoll.report.suite.page import page
from atoll.report.suite.worst_attack import section
from tests.records.test_worst_case import CELLS, results


def test_the_tables_name_the_worst_attack_and_the_setting_that_stands_it_best() -> None:
    found = section(results(*CELLS))
    assert found is not None
    worst = [[c.inline for c in line.cells] for line in found.worst.rows]
    assert worst == [
        ["0 %", "90.0", "—", "—"],
        ["5 %", "diverged", "—", "—"],
        ["10 %", "60.0 (alie)", "20.0 (ipm)", "40.0 (ipm)"],
    ]
    assert found.best is not None
    assert [c.inline for c in found.best.rows[2].cells] == ["10 %", "60.0 (alie)", "40.0 (clip(10); ipm)"]
    assert "| 10 % | 60.0 (alie) |" in markdown(found.best)


def test_a_figure_for_every_share_that_has_two_attacks() -> None:
    found = section(results(*CELLS))
    assert found is not None
    assert [plot.title for plot in found.figures] == ["10 %"]
    assert "clip(1) 20.0 under ipm" in found.figures[0].alt


def test_without_settings_there_is_nothing_to_choose_and_without_an_axis_no_section() -> None:
    found = section(results(*(c for c in CELLS if c.method == "krum")))
    assert found is not None
    assert found.best is None
    assert section(replace(results(*CELLS), worst_over=None)) is None
    assert section(results()) is None


@pytest.mark.figures
def test_the_page_and_the_markdown_have_it_and_a_cell_that_diverged_says_so() -> None:
    lost = replace(CELLS[4], runs=(), diverged=2, failed={"seed 0": "not finite", "seed 1": "not finite"})
    grid = results(*CELLS[:4], lost, CELLS[5])
    text = page(grid)
    assert 'id="worst"' in text
    assert ">div.<" in text
    assert "clip(1) diverged under ipm" in text
    assert "http" not in text.split('id="worst"')[1].split("</section>")[0]
    assert "The best setting against the worst attack" in as_markdown(grid)
