"""The pure parts of benchmarks/peers.py: nothing is installed, no peer runs."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.paths import ROOT

BENCHMARKS = ROOT / "benchmarks"
ROOMS = ("common", "process", "environment", "result", "peers")
ADAPTERS = sorted(path.parent.name for path in (BENCHMARKS / "peers").glob("*/run.py"))

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """The harness's modules, which live beside each other and not in a package."""
    before = list(sys.path)
    sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "peers")]
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in ROOMS})
    finally:
        sys.path[:] = before
        for name in ROOMS:
            sys.modules.pop(name, None)


def outcome(bench: Any, output: str, code: int | None = 0) -> Any:
    return bench.process.Outcome(code, output, started=100.0, wall_seconds=9.0, peak_bytes=250_000_000, processes=3)


def peer(title: str, **more: Any) -> dict[str, Any]:
    known = {"version": "1.0", "framework": "torch 2", "megabytes": 900, "distributions": 20, "lines": 30, "runs": {}}
    return {"title": title, **known, **more}


def test_lines_of_code_are_those_between_the_markers_that_say_something(bench: Any) -> None:
    source = "import x\n# user code\ndef train():\n\n    # why\n    return 1  # so\n# end of user code\nmore = 1\n"
    assert bench.result.lines_of_code(source) == 2


def test_an_adapter_without_markers_is_refused(bench: Any) -> None:
    with pytest.raises(ValueError, match="# user code"):
        bench.result.lines_of_code("def train():\n    return 1\n")


def test_the_environment_of_atoll_has_all_that_atoll_depends_on() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.split(r"[<>=\[]", name)[0] for name in project["dependencies"]}
    pinned = (BENCHMARKS / "peers" / "atoll" / "requirements.txt").read_text().split()
    assert needed <= {line.partition("==")[0].lower() for line in pinned}


@pytest.mark.parametrize("name", ADAPTERS)
def test_every_adapter_has_markers_and_pinned_requirements(bench: Any, name: str) -> None:
    folder = BENCHMARKS / "peers" / name
    assert bench.result.lines_of_code((folder / "run.py").read_text()) > 10
    lines = [line for line in (folder / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines
    assert all("==" in line for line in lines)
    assert {line for line in lines if line.startswith("torch==")} <= {"torch==2.13.0"}


def test_every_adapter_is_a_peer_of_the_table(bench: Any) -> None:
    assert {peer.folder for peer in bench.peers.PEERS.values()} == set(ADAPTERS)


@pytest.mark.parametrize(
    ("requirement", "said", "why"),
    [
        ("x==2", "ERROR: 1 Requires-Python >=3.12; 2 Requires-Python >=3.14\nERROR: none", "x==2 wants Python >=3.14"),
        ("x==2", "WARNING: slow\nERROR: No distribution found for x==2", "ERROR: No distribution found for x==2"),
        ("x", "ERROR: 2 Requires-Python >=3.14\nERROR: none for x", "ERROR: none for x"),
    ],
)
def test_what_pip_refuses_is_said_in_short(bench: Any, requirement: str, said: str, why: str) -> None:
    assert bench.environment.refused(requirement, said) == why


def test_who_has_no_adapter_is_no_peer_and_the_other_way_round(bench: Any) -> None:
    assert not set(bench.peers.TRIED) & set(bench.peers.PEERS)


def test_every_workload_has_a_model_of_its_size(bench: Any) -> None:
    models = importlib.import_module("models")
    try:
        counts = {name: sum(p.numel() for p in make().parameters()) for name, make in models.MODELS.items()}
    finally:
        sys.modules.pop("models")
    assert counts == {name: work.parameters for name, work in bench.common.WORKLOADS.items()}


def test_atolls_pins_are_those_of_the_constraints() -> None:
    held = set((BENCHMARKS.parent / "constraints.txt").read_text().splitlines())
    pins = (BENCHMARKS / "peers" / "atoll" / "requirements.txt").read_text().splitlines()
    assert {pin for pin in pins if not pin.startswith("setuptools==")} <= held


def test_seconds_are_the_median_after_the_first_round_and_start_up_is_what_comes_before(bench: Any) -> None:
    said = 'noise\n[log] PEER {"ends": [105.0, 106.0, 107.0, 117.0], "norm": 2.0}\nmore noise\n'
    found = bench.result.figures(outcome(bench, said), 4, 60)
    assert found["seconds"] == 1.0
    assert found["startup"] == 4.0
    assert (found["peak_mb"], found["processes"], found["wall"], found["norm"]) == (250, 3, 9.0, 2.0)


def test_a_run_that_fails_is_an_error_with_its_last_word(bench: Any) -> None:
    output = "Traceback\nModuleNotFoundError: No module named 'peer'\nbye\n"
    assert bench.result.figures(outcome(bench, output, 1), 4, 60) == {
        "error": "ModuleNotFoundError: No module named 'peer'"
    }


def test_a_run_that_says_nothing_is_an_error(bench: Any) -> None:
    assert bench.result.figures(outcome(bench, "all well\n"), 4, 60) == {"error": "all well"}


def test_a_run_that_takes_too_long_is_an_error(bench: Any) -> None:
    assert bench.result.figures(outcome(bench, "", None), 4, 60) == {"error": "not done after 60 s"}


def test_a_run_with_other_rounds_than_asked_for_is_an_error(bench: Any) -> None:
    found = bench.result.figures(outcome(bench, 'PEER {"ends": [105.0, 106.0], "norm": 2.0}'), 4, 60)
    assert found == {"error": "2 rounds were seen to end, not 4"}


def test_the_table_has_a_row_for_every_peer_and_says_why_one_has_no_figures(bench: Any) -> None:
    run = {"seconds": 0.5, "startup": 2.0, "peak_mb": 100, "processes": 1, "wrong": ""}
    slow = {**run, "seconds": 2.0, "wrong": "loss 9 | not 1"}
    results = {
        "machine": "two cores",
        "workloads": {"a": "small", "b": "not asked for"},
        "peers": {
            "atoll": peer("Atoll", runs={"a": run}),
            "slow": peer("Slow", runs={"a": slow}),
            "broken": peer("Broken", runs={"a": {"error": "KeyError: 'x'"}}),
            "absent": {"title": "Absent", "lines": 7, "error": "No matching distribution"},
            "later": peer("Later"),
        },
    }
    told = bench.result.markdown(results).splitlines()
    assert "| Atoll | 0.500 | 1.00 | 100 | 1 | 2.0 |  |" in told
    assert "| Slow | 2.00 | 4.00 | 100 | 1 | 2.0 | learned something else: loss 9 \\| not 1 |" in told
    assert "| Broken | - | - | - | - | - | does not run: KeyError: 'x' |" in told
    assert "| Absent | - | - | - | - | - | does not install: No matching distribution |" in told
    assert "| Later | - | - | - | - | - | not run |" in told
    assert "| Absent | - | - | - | - | 7 |" in told
    assert "| Slow | 1.0 | torch 2 | 900 | 20 | 30 |" in told


def test_a_peer_that_does_not_install_gets_an_error_and_no_python(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise bench.environment.InstallError("ERROR: No matching distribution found for fedlab==1.3.0")

    monkeypatch.setattr(bench.environment, "install", refuse)
    known = bench.peers.prepare("fedlab", tmp_path)
    assert known["error"] == "ERROR: No matching distribution found for fedlab==1.3.0"
    assert known["lines"] > 10
    assert "python" not in known


def test_pips_refusal_is_an_install_error(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    (tmp_path / "requirements.txt").write_text("no-such-distribution-here==1.0\n")
    with pytest.raises(bench.environment.InstallError, match="no-such-distribution-here"):
        bench.environment.environment("nobody", tmp_path / "requirements.txt", tmp_path / "cache")
    assert not (tmp_path / "cache" / "nobody" / "installed.json").exists()


def test_the_size_of_a_folder_counts_hard_links_once_and_links_not_at_all(bench: Any, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "one").write_bytes(b"x" * 1000)
    (folder / "two").write_bytes(b"x" * 50)
    os.link(folder / "two", folder / "again")
    (tmp_path / "outside").write_bytes(b"x" * 7)
    (folder / "link").symlink_to(tmp_path / "outside")
    assert bench.environment.size(folder) == 1050


def test_the_digest_of_an_environment_changes_with_its_requirements(bench: Any, tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("a==1\n")
    first = bench.environment.digest("pfl", file)
    file.write_text("a==2\n")
    assert bench.environment.digest("pfl", file) != first


CHILD = "import time; x = bytearray(60_000_000); x[::4096] = b'1' * len(x[::4096]); time.sleep(1.2)"


@pytest.mark.slow
def test_memory_is_that_of_all_processes_together(bench: Any, tmp_path: Path) -> None:
    code = f"import subprocess, sys; c = [subprocess.Popen([sys.executable, '-c', {CHILD!r}]) for _ in '12']\n"
    code += "[p.wait() for p in c]; print('done')"
    found = bench.process.watch([sys.executable, "-c", code], os.environ, 30, tmp_path / "log", tmp_path)
    assert (found.code, found.output.strip(), found.processes) == (0, "done", 3)
    assert 120e6 < found.peak_bytes < 300e6


@pytest.mark.slow
def test_a_run_past_its_limit_ends_with_all_that_it_started(bench: Any, tmp_path: Path) -> None:
    code = "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], "
    code += "start_new_session=True); print(p.pid, flush=True); time.sleep(60)"
    before = time.monotonic()
    found = bench.process.watch([sys.executable, "-c", code], os.environ, 1.0, tmp_path / "log", tmp_path)
    assert found.code is None
    assert not Path(f"/proc/{int(found.output)}").exists()
    assert time.monotonic() - before < 10


def test_an_adapters_result_comes_back_through_its_file_and_its_line(bench: Any, tmp_path: Path) -> None:
    work = bench.common.WORKLOADS["a"]
    x, y = np.zeros((work.clients * work.each, 60), np.float32), np.zeros(work.clients * work.each, np.int64)
    np.savez(tmp_path / "a.npz", x=x, y=y, **{"start/head.bias": np.ones(10, np.float32)})
    code = "import common\ndef train(job, tick):\n    tick(); tick()\n    assert len(job.client(99)[1]) == 20\n"
    code += "    return {k: 3 * v for k, v in job.start.items()}\ncommon.main(train)"
    command = [sys.executable, "-c", code, "a", "--rounds", "2", "--data", ".", "--out", "out.npz"]
    env = os.environ | {"PYTHONPATH": str(BENCHMARKS / "peers")}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    said = bench.result.spoken(done.stdout)
    assert len(said["ends"]) == 2
    assert said["norm"] == pytest.approx(3 * 10**0.5)
    assert np.load(tmp_path / "out.npz")["head.bias"].tolist() == [3.0] * 10
