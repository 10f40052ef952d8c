"""Reports of runs without a server: what nodes send each other, each byte once, and no columns of a server."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.records import read_runs
from atoll.report import prose
from atoll.report.final_table import brief_table, final, page_table
from atoll.report.metrics import primary
from atoll.report.plots import _by_bytes, plots
from atoll.report.reaching import reaching_table
from atoll.report.seed_groups import Group, group
from atoll.report.virtual_time import gantt, parts_table

GIVEN: dict[str, Any] = {
    "rounds": 3,
    "data": "digits",
    "partition": {"name": "iid", "clients": 6},
    "task": {"model": "linear"},
    "local": {"batch": 32, "max_steps": 2},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "engine": "vector",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    at = tmp_path_factory.mktemp("runs")
    clock = {"seconds_per_step": 0.1, "up_mbps": 1.0, "down_mbps": 1.0}
    for name in ("central", "gossip"):
        atoll.run({**GIVEN, "label": name, "round": name, "clock": clock}, at / name)
    return {name: at / name for name in ("central", "gossip")}


def groups(folders: dict[str, Path], *names: str) -> tuple[list[Group], Any]:
    records = read_runs([folders[name] for name in names])
    return group(records), primary(records)


def test_nodes_send_and_there_is_no_up_and_down(folders: dict[str, Path]) -> None:
    made = final(*groups(folders, "gossip"))
    titles = {column.title for column in page_table(made).columns}
    assert "MB sent" in titles
    assert not titles & {"MB up", "MB down"}
    brief = brief_table(made)
    assert "MB sent" in {column.title for column in brief.columns}
    assert any("mean of all nodes' models" in note for note in brief.notes)
    assert not any("server" in column.meaning for column in made.columns)


def test_a_server_beside_it_keeps_its_columns_and_each_run_fills_its_own(folders: dict[str, Path]) -> None:
    made = final(*groups(folders, "central", "gossip"))
    filled = [{k for k, cell in one.cells.items() if cell is not None} for one in made.rows if one.when == "before"]
    assert [{"up", "down", "sent"} & keys for keys in filled] == [{"up", "down"}, {"sent"}]
    alone = final(*groups(folders, "central"))
    assert "MB sent" not in {column.title for column in page_table(alone).columns}
    assert not any("nodes" in note for note in brief_table(alone).notes)


def test_every_byte_is_counted_once_in_figures_and_in_what_a_value_took(folders: dict[str, Path]) -> None:
    for name, ways in (("gossip", ("up",)), ("central", ("up", "down"))):
        (one,), metric = groups(folders, name)
        (record,) = one.records
        want = sum(record.series("bytes", way).values for way in ways)
        assert np.array_equal(record.bytes_sent(), want)
        line = _by_bytes(one, metric)
        assert line is not None
        assert line.x[-1] == pytest.approx(want.sum() / 1e6)
        table = reaching_table([one], metric)
        assert table is not None
        titles = {column.title for column in table.columns}
        assert ("MB sent" in titles, "MB, up and down" in titles) == (name == "gossip", name == "central")
        (plot,) = (p for p in plots([one], metric) if p.name == "bytes")
        assert ("up and down" in plot.caption) == (name == "central")


def test_virtual_seconds_of_a_server_are_shown_where_there_is_one(folders: dict[str, Path]) -> None:
    none, some = (parts_table(groups(folders, *names)[0]) for names in (("gossip",), ("central", "gossip")))
    assert "Server, virtual seconds" not in {column.group for column in none.columns}
    assert not any("server" in note.lower() for note in none.notes)
    places = [i for i, column in enumerate(some.columns) if column.group == "Server, virtual seconds"]
    assert len(places) == 2
    assert len(none.columns) == len(some.columns) - 2
    central, gossip = ([one.filled[i].text for i in places] for one in some.rows)
    assert all(float(text) >= 0 for text in central)
    assert gossip == [prose.MISSING] * 2
    assert [cell.text for cell in none.rows[0].filled] == [
        cell.text for i, cell in enumerate(some.rows[1].filled) if i not in places
    ]
    (record,) = groups(folders, "gossip")[0][0].records
    assert "server" not in gantt(record).caption
