"""What it took to get there: rounds, bytes and virtual seconds, and nobody who failed is left out of a mean unseen."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.clock import ABSENT, COUNTED, DROPPED, LATE, Overhead, RoundParts, Timeline
from atoll.records import RunFolder, read_runs
from atoll.report import group, known_metric, reaching, virtual_time, write
from atoll.report.metrics import ACCURACY
from tests.report.test_report import write_run

pytestmark = pytest.mark.usefixtures("without_figures")


def timed(number: int, start: float) -> Timeline:
    """Client 0 is the last to count, 1 is early, 2 late, 3 lost while it trains, 4 not there."""
    none = np.inf
    received, sent, arrived = (
        start + np.array(t) for t in ([1.0, 1, 1, 1, none], [3.0, 2, 8, none, none], [4.0, 2.5, 9, none, none])
    )
    status = np.array([COUNTED, COUNTED, LATE, DROPPED, ABSENT], np.int8)
    ids = np.arange(5)
    return Timeline(start, start + 5, ids, ids, received, sent, arrived, status, False, 10.0, 10.0, 0.1)


def clocked(root: Path, values: Sequence[float], **more: Any) -> Path:
    folder = RunFolder(write_run(root, values=values, **more))
    lines = [timed(i, 5.0 * i) for i in range(len(values))]
    folder.write_times(t.as_line(i + 1) for i, t in enumerate(lines))
    folder.write_record({**entry, "clock": t.summary()} for entry, t in zip(folder.record(), lines, strict=True))
    return folder.path


def cells(folders: Sequence[Path]) -> list[list[str]]:
    table = reaching.reaching_table(group(read_runs(folders)), ACCURACY)
    assert table is not None
    return [[cell.inline for cell in row.cells] for row in table.rows]


def test_what_a_protocol_takes_is_encrypting_and_no_training() -> None:
    plain = RoundParts.of(timed(0, 0.0))
    around = replace(timed(0, 0.0), encrypted=np.full(5, 0.5), overhead=Overhead(client_seconds=0.5))
    secure = RoundParts.of(around)
    assert secure[4] == 0.5  # after federated time, receiving, training and compressing
    assert secure[2] == plain[2] - 0.5
    assert secure[5:] == plain[5:]


def test_what_was_spent_when_a_value_was_first_reached(tmp_path: Path) -> None:
    found = cells([clocked(tmp_path, [0.1, 0.3, 0.2, 0.5])])
    assert found == [
        ["accuracy 30", "fedavg", "2.00", "8.00", "10.0"],
        ["accuracy 42", "fedavg", "4.00", "16.0", "20.0"],
        ["accuracy 48", "fedavg", "4.00", "16.0", "20.0"],
    ]


def test_who_never_gets_there_counts_with_all_it_spent(tmp_path: Path) -> None:
    """Never a mean over the lucky ones: a bound from below, and how many it is about."""
    seeds = [[0.1, 0.9, 0.9, 0.9], [0.1, 0.1, 0.1, 0.2]]
    found = cells([clocked(tmp_path, values, seed=i) for i, values in enumerate(seeds)])
    assert found[0] == ["accuracy 32.5", "fedavg", *(f"> {x} (1 of 2 seeds never)" for x in ("3.00", "12.0", "15.0"))]
    written = write([tmp_path / name for name in sorted(p.name for p in tmp_path.iterdir())], tmp_path / "page.html")
    assert "td.number small { display: block;" in written.read_text()  # beside it "3.00" and "1 of 2" would be 3.001
    other = clocked(tmp_path, [0.1, 0.11, 0.12], label="slow")
    assert cells([clocked(tmp_path, [0.1, 0.9]), other])[1][2:] == ["not reached"] * 3


def test_a_run_without_a_clock_has_rounds_and_bytes(tmp_path: Path) -> None:
    assert [len(row) for row in cells([write_run(tmp_path)])] == [4, 4, 4]


def test_less_time_and_fewer_bytes_are_better() -> None:
    costs = ("clock.end", "bytes.up", "seconds.train")
    assert not any(known_metric(key).higher_is_better for key in costs)


def test_nothing_is_said_of_a_metric_that_was_measured_once(tmp_path: Path) -> None:
    assert reaching.reaching_table(group(read_runs([write_run(tmp_path, values=[0.5])])), ACCURACY) is None


def test_the_parts_of_a_round_are_those_of_clients_that_count(tmp_path: Path) -> None:
    parts = virtual_time.parts_table(group(read_runs([clocked(tmp_path, [0.1, 0.2])])))
    federated, *client = [float(cell.text) for cell in parts.rows[0].cells[1:10]]
    assert federated == 5
    assert client == [1.0, 1.5, 0, 0, 0.75, 1.75, 1.0, 4.0]


def test_stragglers_are_those_who_are_last_or_late(tmp_path: Path) -> None:
    table = virtual_time.straggler_table(group(read_runs([clocked(tmp_path, [0.1, 0.2, 0.3])])))
    by_client = {row.cells[0].text: [cell.text for cell in row.cells[1:]] for row in table.rows}
    assert by_client["client 0"] == ["3", "3", "0", "0", "4.00"]
    assert by_client["client 2"] == ["3", "0", "3", "0", "9.00"]
    assert by_client["client 3"] == ["3", "0", "0", "3", "—"]


def test_the_page_has_the_section_only_where_there_was_a_clock(tmp_path: Path) -> None:
    with_clock = write([clocked(tmp_path, [0.1, 0.2])], tmp_path / "a.html").read_text("utf-8")
    without = write([write_run(tmp_path)], tmp_path / "b.html").read_text("utf-8")
    assert "Who holds the others up" in with_clock
    assert "Who holds the others up" not in without


def test_figures_are_drawn_of_a_real_run(tmp_path: Path) -> None:
    clock = {"seconds_per_step": 0.1, "devices": "phones", "deadline": 1.0, "dropout": 0.3}
    partition = {"name": "dirichlet", "alpha": 0.3, "clients": 10}
    file = {"rounds": 3, "engine": "loop", "data": "digits", "partition": partition, "task": {"model": "linear"}}
    run = atoll.run({**file, "algorithm": {"name": "fedavg", "lr": 0.1}, "clock": clock}, tmp_path / "run")
    plots = virtual_time.virtual_plots(group(read_runs([run.folder])), ACCURACY)
    assert [plot.name for plot in plots] == ["virtual-seconds", "gantt"]
    assert all(plot.draw() for plot in plots)
