"""The worst over an axis, by hand."""

import math
from dataclasses import replace

import pytest

from atoll.records import (
    BestSetting,
    Cell,
    Results,
    Trace,
    WorstCase,
    best_settings,
    grids,
    read_results,
    worst_by_method,
    worst_case,
    write_results,
)
from atoll.records.worst_case import family


def cell(share: str, attack: str, defence: str, values: tuple[float, ...], **more: object) -> Cell:
    runs = tuple(Trace(s, f"{share}{attack}{defence}{s}", (1,), (v,), (1.0,), (1.0,)) for s, v in enumerate(values))
    path = {"malicious": share, "attack": attack, "defence": defence}
    return replace(Cell("grid", path, runs, wanted=len(values)), **more)  # type: ignore[arg-type]


CELLS = (
    cell("10 %", "alie", "krum", (0.5, 0.7)),
    cell("10 %", "alie", "clip(1)", (0.9, 0.9)),
    cell("10 %", "alie", "clip(10)", (0.8, 0.8)),
    cell("10 %", "ipm", "krum", (0.8, 0.8)),
    cell("10 %", "ipm", "clip(1)", (0.1, 0.3)),
    cell("10 %", "ipm", "clip(10)", (0.4, 0.4)),
    cell("0 %", "nobody", "krum", (0.9, 0.9)),
    cell("5 %", "ipm", "krum", (), failed={"seed 0": "out of memory"}),
    cell("5 %", "alie", "krum", (0.7,), failed={"seed 1": "not finite"}, diverged=1),
)


def results(*cells: Cell) -> Results:
    axes = ("malicious", "attack", "defence")
    return Results("g", "Grid", "full", "accuracy", True, axes, cells, scale=100.0, worst_over="attack")


def test_a_grid_holds_means_over_seeds_and_shares_come_in_order() -> None:
    none, five, ten = grids(results(*CELLS))
    assert [g.at for g in (none, five, ten)] == [("0 %",), ("5 %",), ("10 %",)]
    assert ten.under == ("alie", "ipm")
    assert ten.methods == ("krum", "clip(1)", "clip(10)")
    assert ten.column("krum") == pytest.approx({"alie": 60.0, "ipm": 80.0})
    assert none.column("krum") == pytest.approx({"nobody": 90.0})


def test_a_seed_that_diverged_makes_the_cell_diverge_and_other_failures_say_nothing() -> None:
    five = grids(results(*CELLS))[1]
    assert list(five.values) == [("alie", "krum")]
    assert math.isnan(five.values["alie", "krum"])


def test_the_worst_is_the_lowest_and_what_diverged_is_lower_than_all() -> None:
    ten = grids(results(*CELLS))[2]
    worst = worst_by_method(ten, higher=True)
    assert {m: (w.under, round(w.value, 6)) for m, w in worst.items()} == {
        "krum": ("alie", 60.0),
        "clip(1)": ("ipm", 20.0),
        "clip(10)": ("ipm", 40.0),
    }
    assert worst_case({"a": 0.0, "b": math.nan}, higher=True).under == "b"  # type: ignore[union-attr]
    assert worst_case({"a": 1.0, "b": math.nan, "c": 3.0}, higher=False).under == "b"  # type: ignore[union-attr]
    assert worst_case({"a": 1.0, "b": 3.0}, higher=False) == WorstCase("b", 3.0)
    assert worst_case({}, higher=True) is None


def test_the_best_setting_is_the_one_whose_worst_is_least_bad() -> None:
    worst = {
        "clip(1)": WorstCase("ipm", 20.0),
        "clip(10)": WorstCase("alie", 40.0),
        "clip(100)": WorstCase("ipm", math.nan),
        "krum": WorstCase("alie", 60.0),
    }
    assert best_settings(worst, higher=True) == {
        "clip": BestSetting("clip(10)", worst["clip(10)"]),
        "krum": BestSetting("krum", worst["krum"]),
    }
    assert best_settings(worst, higher=False)["clip"].method == "clip(1)"
    assert [family(m) for m in ("clip(1)", "nnm, clip", "a(b")] == ["clip", "nnm, clip", "a(b"]


def test_a_suite_that_names_no_axis_has_no_grid() -> None:
    assert grids(replace(results(*CELLS), worst_over=None)) == []


def test_the_file_keeps_the_axis_and_what_diverged(tmp_path) -> None:  # type: ignore[no-untyped-def]
    there = read_results(write_results(results(*CELLS), tmp_path / "results.json"))
    assert there.worst_over == "attack"
    assert [c.diverged for c in there.cells] == [0] * 8 + [1]
