"""A run knows its data: it does not go on with others, and comparisons name what changed."""

from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.analysis.compare import compare, opened
from atoll.analysis.diff import parting, words
from atoll.errors import RecordError


class GoneError(Exception):
    """What a test stops a run with."""


def leave_after_two(done: int, rounds: int, entry: object) -> None:
    if done == 2:
        raise GoneError


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "patients.csv"
    rows = [f"{i % 7},{(i * 5) % 11},{i % 2},{i % 3}" for i in range(120)]
    path.write_text("\n".join(["age,dose,ill,hospital", *rows]) + "\n")
    return path


def experiment(table: Path, **changes: Any) -> dict[str, Any]:
    return {
        "rounds": 4,
        "data": {"name": "csv", "path": str(table), "label": "ill", "client": "hospital"},
        "algorithm": {"name": "fedavg", "lr": 0.1},
        "engine": "loop",
        "checkpoint": {"every": 1},
        **changes,
    }


def change_a_value(table: Path) -> None:
    table.write_text(table.read_text().replace("\n3,4,", "\n3,5,", 1))


def test_a_run_says_which_data_it_had(table: Path, tmp_path: Path) -> None:
    run = atoll.run(experiment(table, evaluate={"holdout": 0.2}), tmp_path / "a")
    data, partition = run.info["data"], run.info["partition"]
    assert len(data["digest"]) == 40
    assert data["train"] + data["test"] == 120
    assert partition["split"] != partition["digest"]
    assert atoll.run(experiment(table), tmp_path / "b").info["data"] == data
    change_a_value(table)
    assert atoll.run(experiment(table), tmp_path / "c").info["data"]["digest"] != data["digest"]


def test_a_run_does_not_go_on_with_changed_data(table: Path, tmp_path: Path) -> None:
    original = table.read_text()
    with pytest.raises(GoneError):
        atoll.run(experiment(table), tmp_path / "run", watch=leave_after_two)
    change_a_value(table)
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    message = r"run: the data are not those that this run began with \(digest \w{8}..., now \w{8}...\). Put them back"
    with pytest.raises(RecordError, match=message):
        atoll.run(experiment(table), tmp_path / "run", resume=True)
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()} == before
    table.write_text(original)
    assert atoll.run(experiment(table), tmp_path / "run", resume=True).status == "finished"


def test_two_runs_on_two_versions_of_a_file_are_told_apart(table: Path, tmp_path: Path) -> None:
    atoll.run(experiment(table), tmp_path / "a")
    change_a_value(table)
    atoll.run(experiment(table), tmp_path / "b")
    found = parting(tmp_path / "a", tmp_path / "b")
    text = "\n".join(words(found))
    assert "The experiments are the same but for the data: the data differ (digest " in text
    assert "Not paired: data another, partition the same" in text
    assert "the data of a have changed since" in text
    assert "cannot be reproduced" not in text


def test_runs_on_two_versions_of_a_file_make_no_pair(table: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        atoll.run(experiment(table, seed=seed), tmp_path / "a" / str(seed))
    change_a_value(table)
    other = {"algorithm": {"name": "fedprox", "lr": 0.1, "mu": 0.1}}
    for seed in (0, 1):
        atoll.run(experiment(table, seed=seed, **other), tmp_path / "b" / str(seed))
    with pytest.raises(RecordError, match=r"seeds 0, 1: the data differ \(digest \w{8}... in A, \w{8}... in B\)"):
        compare(opened(str(tmp_path / "a")), opened(str(tmp_path / "b")))


def test_data_that_was_prepared_otherwise_is_compared(table: Path, tmp_path: Path) -> None:
    raw = experiment(table)
    atoll.run(raw, tmp_path / "a")
    atoll.run({**raw, "data": {**raw["data"], "standardise": "none"}}, tmp_path / "b")
    found = parting(tmp_path / "a", tmp_path / "b", again="no")
    assert found.data[0] != found.data[1]
    assert "the data differ" not in "\n".join(words(found))


RING, PATH = "0 1\n1 2\n2 3\n3 0\n", "0 1\n1 2\n2 3\n"
TRACE = "client,slowness\n0,1\n1,2\n2,1\n3,1\n"
ASKED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "round.graph": (RING, PATH, {"round": {"name": "gossip", "graph": {"name": "file", "path": "FILE"}}}),
    "clock.trace": (TRACE, TRACE.replace("1,2", "1,3"), {"clock": {"seconds_per_step": 1.0, "trace": "FILE"}}),
    "cohort.trace": (
        "1,1\n1,0\n0,1\n1,1\n",
        "1,1\n1,1\n0,1\n1,1\n",
        {"cohort": {"name": "available", "trace": "FILE"}},
    ),
}


def named(setting: Any, path: Path) -> Any:
    if isinstance(setting, dict):
        return {key: named(value, path) for key, value in setting.items()}
    return str(path) if setting == "FILE" else setting


@pytest.mark.parametrize("name", ASKED)
def test_a_run_knows_the_files_of_its_round_and_clock_too(name: str, table: Path, tmp_path: Path) -> None:
    """It does not go on with another graph, other devices or other cohorts, and they are no pair."""
    first, second, setting = ASKED[name]
    path = tmp_path / "file.csv"
    four = {"data": "digits", "partition": {"name": "iid", "clients": 4}, "evaluate": {"clients": 0}}
    file = {**experiment(table), **four, **named(setting, path), "local": {"max_steps": 1}}
    path.write_text(first)
    atoll.run(file, tmp_path / "a")
    with pytest.raises(GoneError):
        atoll.run(file, tmp_path / "run", watch=leave_after_two)
    path.write_text(second)
    with pytest.raises(RecordError, match=r"are not those that this run began with \(digest"):
        atoll.run(file, tmp_path / "run", resume=True)
    atoll.run(file, tmp_path / "b")
    with pytest.raises(RecordError, match=rf"what {name} names differs \(digest \w{{8}}... in A"):
        compare(opened(str(tmp_path / "a")), opened(str(tmp_path / "b")))
    text = "\n".join(words(parting(tmp_path / "a", tmp_path / "b")))
    assert f"what {name} names differs (digest " in text
    path.write_text(first)
    assert atoll.run(file, tmp_path / "run", resume=True).status == "finished"
