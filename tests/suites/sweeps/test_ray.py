"""Sweeps on a real Ray, started here. Not part of the usual tests: `make test-ray`."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # or it leaves a token in the home folder
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
ray = pytest.importorskip("ray", reason="Ray is not installed")

import atoll  # noqa: E402
from atoll.errors import TrainingError  # noqa: E402
from atoll.experiment import Experiment  # noqa: E402
from atoll.runs import Run  # noqa: E402
from atoll.suites.sweeps import Events, expand  # noqa: E402

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::ResourceWarning")]

RAW: dict[str, Any] = {
    "rounds": 40,
    "data": "digits",
    "partition": {"name": "iid", "clients": 3},
    "task": {"model": "linear"},
    "local": {"max_steps": 20},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "engine": "loop",
    "checkpoint": {"every": 5},
    "sweep": {"seeds": 2, "resources": {"cpus": 1}},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A Ray with two CPUs, and its address."""
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    place = tmp_path_factory.mktemp("whole")
    return [models(atoll.run(cell.experiment, place / cell.name)) for cell in expand(RAW)]


def models(run: Run) -> list[str]:
    return [line["model"] for line in run.history]


def test_every_cell_is_run_as_by_hand_and_what_is_done_is_not_run_again(
    cluster: str, tmp_path: Path, whole: list[list[str]]
) -> None:
    done = atoll.sweep.run(RAW, tmp_path / "sweep", executor="ray")
    assert done.status == "finished"
    assert [models(run) for run in done.runs] == whole
    before = [(run.folder / "record.jsonl").stat().st_mtime_ns for run in done.runs]
    again = atoll.sweep.run(RAW, tmp_path / "sweep", executor="ray", resume=True)
    assert [(run.folder / "record.jsonl").stat().st_mtime_ns for run in again.runs] == before


def test_a_cell_whose_worker_is_killed_goes_on_from_its_checkpoint(
    cluster: str, tmp_path: Path, whole: list[list[str]]
) -> None:
    killed: list[int] = []

    def hunt() -> None:
        cells, until = tmp_path / "sweep" / "cells", time.monotonic() + 60
        while not killed and time.monotonic() < until:
            for record in cells.glob("seed=0-*/record.jsonl"):
                if record.read_bytes().count(b"\n") >= 12:
                    killed.extend(kill(record.parent))
            time.sleep(1e-3)

    hunter = threading.Thread(target=hunt)
    hunter.start()
    done = atoll.sweep.run(RAW, tmp_path / "sweep", executor="ray", jobs=1)
    hunter.join()
    assert len(killed) == 1
    assert done.status == "finished"
    assert [models(run) for run in done.runs] == whole


def kill(folder: Path) -> Iterator[int]:
    """Whoever has this folder open (it is locked while a run is at work) is killed."""
    for process in Path("/proc").iterdir():
        try:
            links = [link.readlink() for link in (process / "fd").iterdir()] if process.name.isdecimal() else []
        except OSError:  # it is gone, or not ours
            continue
        if folder in links and int(process.name) != os.getpid():
            os.kill(int(process.name), signal.SIGKILL)
            yield int(process.name)


def test_a_cell_that_fails_does_not_stop_the_others(cluster: str, tmp_path: Path) -> None:
    raw = {**RAW, "rounds": 2, "sweep": {"algorithm.lr": [0.1, 1e38]}}
    done = atoll.sweep.run(raw, tmp_path / "sweep", executor="ray")
    assert "the loss or the update of" in done.failed["lr=1e+38"]
    assert len(done.runs) == 1


class Interrupting(Events):
    """Ctrl-C, once the first rounds are seen."""

    told = False

    def round(self, names: Sequence[str], done: int, rounds: int, entry: Mapping[str, Any]) -> None:
        if not self.told:
            self.told = True
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_checkpoints_what_is_under_way(cluster: str, tmp_path: Path, whole: list[list[str]]) -> None:
    raw = {**RAW, "rounds": 400}
    half = atoll.sweep.run(raw, tmp_path / "sweep", executor="ray", jobs=1, events=Interrupting())
    assert half.status == "interrupted"
    run = half.run("seed=0")
    assert (run.status, half.states["seed=1"]) == ("interrupted", "waiting")
    assert 0 < len(run.history) < 400
    n = min(40, len(run.history))
    assert models(run)[:n] == whole[0][:n]


def test_the_command_takes_an_address(cluster: str, tmp_path: Path) -> None:
    raw = {k: v for k, v in RAW.items() if k != "sweep"} | {"rounds": 2}
    (tmp_path / "e.toml").write_text(Experiment.parse(raw).to_toml() + "\n[sweep]\nseeds = 2\n")
    command = [sys.executable, "-m", "atoll", "sweep", "e.toml", "--executor", "ray", "--address", cluster]
    env = {**os.environ, "PYTHONPATH": str(Path(atoll.__file__).parent.parent)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Report: runs/e/report.html" in done.stdout
    assert all(Run(p).status == "finished" for p in (tmp_path / "runs" / "e" / "cells").iterdir())


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nonsense"])
def test_an_address_where_nobody_is_says_so_and_nothing_is_written(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with pytest.raises(TrainingError, match=f"--address: no Ray answers at {address} .* Start one with `ray start"):
        atoll.sweep.run(RAW, tmp_path / "sweep", executor="ray", address=address)
    assert not list(tmp_path.iterdir())
