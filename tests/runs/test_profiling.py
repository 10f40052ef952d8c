"""`--profile` tells where a round's time goes, and changes nothing else."""

import json
import re
import time
from pathlib import Path

import pytest

import atoll
from atoll.phases import ORDER, heard, listening, phase

EXPERIMENT = {
    "rounds": 6,
    "data": "digits",
    "partition": {"name": "iid", "clients": 6},
    "cohort": {"name": "fixed", "size": 3},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "transform": [{"name": "clip_l2", "max_norm": 1.0}],
}


def test_a_phase_does_not_count_the_phases_inside_it() -> None:
    with listening() as found:
        with phase("server"):
            time.sleep(0.02)
            with phase("reduce"):
                time.sleep(0.05)
        with phase("server"):
            pass
    assert 0.02 <= found.seconds["server"] < 0.05 <= found.seconds["reduce"]
    assert [s[0] for s in found.spans] == ["reduce", "server", "server"]


def test_nobody_listens_unless_somebody_does() -> None:
    assert not heard()
    with phase("server"):
        assert not heard()
    with listening() as found:
        assert heard()
    assert found.seconds == {}


@pytest.mark.parametrize("engine", ["loop", "vector", "threads"])
def test_a_profiled_run_has_the_same_record_and_a_table_of_every_phase(engine: str, tmp_path: Path) -> None:
    given = {**EXPERIMENT, "engine": engine}
    plain = atoll.run(given, tmp_path / "plain")
    done = atoll.run(given, tmp_path / "profiled", profile=True)
    assert [e["model"] for e in done.history] == [e["model"] for e in plain.history]
    assert not (tmp_path / "plain" / "profile").exists()
    folder = done.folder / "profile"
    found = json.loads((folder / "phases.json").read_text())
    assert found["rounds"] == 3
    assert list(found["seconds"]) == [*ORDER, "everything else"]
    assert all(found["seconds"][k] > 0 for k in ORDER)
    trace = json.loads((folder / "trace.json").read_text())
    assert trace["traceEvents"]
    page = (folder / "profile.html").read_text()
    assert page.count("<svg") == 3
    assert "src=" not in page  # opens offline
    assert "forward and backward" in page
    assert "prefers-color-scheme: dark" in page
    assert re.search(r"<title>server: \d+\.\d{3} ms</title>", page)


def test_a_run_of_one_round_is_profiled_in_that_round(tmp_path: Path) -> None:
    done = atoll.run({**EXPERIMENT, "rounds": 1, "engine": "vector"}, tmp_path / "run", profile=True)
    assert json.loads((done.folder / "profile" / "phases.json").read_text())["rounds"] == 1
    assert (done.folder / "profile" / "trace.json").exists()
