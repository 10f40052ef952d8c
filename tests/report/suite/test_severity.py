"""The metric as a function of a condition: which rows make a line, and its numbers."""

from dataclasses import replace

import numpy as np
import pytest

from atoll.records import Cell, Results, Trace, round_seconds
from atoll.report.suite.page import page
from atoll.report.suite.severity import _families, severity_plots, split_name

STYLES = {"fedavg": 0, "fedprox": 1}


def cell(condition: str, method: str, values: tuple[float, ...]) -> Cell:
    runs = tuple(Trace(s, f"{condition}{method}{s}", (1,), (v,), (1.0,), (1.0,)) for s, v in enumerate(values))
    return Cell("faults", {"condition": condition, "algorithm": method}, runs, wanted=len(values))


def results(*cells: Cell) -> Results:
    return Results("faults", "Faults", "full", "accuracy", True, ("condition", "algorithm"), cells, scale=100.0)


LOST = [cell(f"lost({x:g})", m, (0.9 - x, 0.8 - x)) for x in (0.4, 0.0, 0.2) for m in STYLES]


def test_rows_that_differ_in_a_number_are_a_line_in_its_order() -> None:
    ((stem, lines),) = _families(results(*LOST), "faults")
    assert stem == "lost"
    assert [one.method for one in lines] == list(STYLES)
    assert lines[0].x.tolist() == [0.0, 0.2, 0.4]
    assert lines[0].mean == pytest.approx([85.0, 65.0, 45.0])
    assert np.isfinite(lines[0].half).all()


def test_a_block_of_several_kinds_of_rows_is_no_function() -> None:
    assert severity_plots(results(*LOST, cell("iid", "fedavg", (0.9,))), STYLES) == []
    assert severity_plots(results(*LOST, cell("late(1)", "fedavg", (0.9,))), STYLES) == []


def test_two_numbers_are_no_function() -> None:
    assert severity_plots(results(*LOST[:4]), STYLES) == []


def test_names_with_two_numbers_are_left_alone() -> None:
    assert split_name(("a(1)", "b(2)")) is None
    assert split_name(("a(-0.5)",)) == ("a", -0.5)


@pytest.mark.figures
def test_the_page_has_the_figure() -> None:
    text = page(results(*LOST))
    assert 'id="severity"' in text
    assert "accuracy (%) against lost, from 0 to 0.4: fedavg from 85 to 45" in text


def test_a_clock_that_takes_no_time_has_no_ratio() -> None:
    still = [replace(c, runs=tuple(replace(r, times={"federated": 0.0, "train": 0.0}) for r in c.runs)) for c in LOST]
    found = replace(results(*still), baseline={"algorithm": "fedavg"})
    assert {one.times_as_long for one in round_seconds(found, "faults")} == {None}
