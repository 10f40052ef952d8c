"""results.json gives back what was written, as far as its digits go."""

import json
import math
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import RecordError
from atoll.records import Cell, Results, Trace, Trial, read_results, write_results
from tests.support.suite_example import example

RESULTS = example()
NUMBER = st.floats(-1e6, 1e6).map(lambda x: float(f"{x:.6g}")) | st.just(math.nan)
SERIES = st.lists(NUMBER, min_size=1, max_size=4).map(tuple)
WORD = st.text(min_size=1, max_size=8)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    values = draw(SERIES)
    costs = [draw(st.lists(NUMBER, min_size=len(values), max_size=len(values)).map(tuple)) for _ in range(2)]
    return Trace(draw(st.integers(0, 99)), draw(WORD), tuple(range(1, len(values) + 1)), values, *costs)


@st.composite
def cells(draw: st.DrawFn) -> Cell:
    path = {"data": draw(WORD), "algorithm": draw(WORD)}
    trials = (Trial({"algorithm.mu": 0.1}, (draw(traces()),), draw(NUMBER)),)
    return Cell(draw(WORD), path, tuple(draw(st.lists(traces(), max_size=3))), trials=trials, quirk=draw(WORD))


def same(a: Any, b: Any) -> bool:
    return repr(a) == repr(b)  # NaN is not equal to itself, but looks like it


@given(st.lists(cells(), max_size=3))
def test_what_is_written_is_read_back(made: list[Cell]) -> None:
    results = Results("s", "t", "full", "accuracy", True, ("data", "algorithm"), tuple(made), missing={"a/*": "why"})
    with TemporaryDirectory() as folder:
        found = read_results(write_results(results, Path(folder) / "results.json"))
    assert same(found, results)


def test_a_file_is_plain_json_with_a_line_for_every_cell(tmp_path: Path) -> None:
    text = write_results(RESULTS, tmp_path / "results.json").read_text()
    found = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert [cell["path"] for cell in found["cells"]] == [dict(cell.path) for cell in RESULTS.cells]
    assert sum(line.startswith('  {"block"') for line in text.splitlines()) == len(RESULTS.cells)
    assert not [p.name for p in tmp_path.iterdir() if p.name != "results.json"]


def test_a_folder_is_as_good_as_its_file_and_what_a_later_version_adds_is_passed_over(tmp_path: Path) -> None:
    path = write_results(RESULTS, tmp_path / "results.json")
    found = json.loads(path.read_text())
    found["new"] = found["cells"][0]["newer"] = found["cells"][0]["runs"][0]["newest"] = 1
    path.write_text(json.dumps(found))
    assert same(read_results(tmp_path), read_results(path))
    assert read_results(path).cells[0].runs[0].seed == RESULTS.cells[0].runs[0].seed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot be read"),
        ("[]", "holds no results"),
        ('{"format": 0}', "holds no results"),
        ('{"format": 1, "cells": []}', "is not what `atoll bench` writes"),
        ('{"format": 1, "axes": [], "cells": [{"runs": [{}]}]}', "is not what `atoll bench` writes"),
    ],
)
def test_what_is_no_results_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(RecordError, match=said):
        read_results(tmp_path)
    with pytest.raises(RecordError, match="is not there"):
        read_results(tmp_path / "other.json")


def test_a_place_that_cannot_be_written_is_an_error_and_leaves_no_draft(tmp_path: Path) -> None:
    (tmp_path / "results.json").mkdir()
    with pytest.raises(RecordError, match="could not be written"):
        write_results(RESULTS, tmp_path / "results.json")
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


def test_last_and_best_of_a_run_with_rounds_that_were_not_finite() -> None:
    run = Trace(0, "", (1, 2, 3), (0.2, math.nan, 0.1), (0.0,) * 3, (0.0,) * 3)
    assert (run.last, run.best(higher=True), run.best(higher=False)) == (0.1, 0.2, 0.1)
    assert math.isnan(replace(run, values=(math.nan,) * 3).best(higher=True))
    assert math.isnan(replace(run, values=(), rounds=()).last)
