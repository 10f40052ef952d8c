"""kill -9 in the middle of a card: nothing that was done is lost, and the card is the one that it would have been."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

FILE = """
rounds = 6
data = "digits"
partition = { name = "dirichlet", clients = 8, alpha = 1.0 }
task = { model = "linear" }
algorithm = { name = "fedavg", lr = 0.3 }
"""


def command(folder: Path) -> list[str]:
    return [sys.executable, "-m", "atoll", "card", "mine.toml", "--seeds", "1", "--jobs", "2", "--out", str(folder)]


def finished(folder: Path) -> list[Path]:
    return [p.parent for p in folder.glob("cells/*/run.json") if '"finished"' in p.read_text()]


def scores(folder: Path) -> dict[str, Any]:
    axes = json.loads((folder / "card.json").read_text())["scores"]["mine"]
    return {axis: one["score"] for axis, one in axes.items()}


@pytest.mark.slow
def test_a_killed_card_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(FILE)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    first = subprocess.Popen(command(tmp_path / "a"), cwd=tmp_path, env=env, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while len(finished(tmp_path / "a")) < 3 and time.monotonic() < until and first.poll() is None:
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = {p / "model.pt": (p / "model.pt").stat().st_mtime_ns for p in finished(tmp_path / "a")}
    assert len(before) >= 3
    assert not (tmp_path / "a" / "card.json").exists()
    again = subprocess.run(command(tmp_path / "a"), cwd=tmp_path, env=env, check=True, capture_output=True, text=True)
    assert "failed" not in again.stdout, again.stdout  # workers of the killed card may still be in their last round
    subprocess.run(command(tmp_path / "b"), cwd=tmp_path, env=env, check=True, capture_output=True)
    assert scores(tmp_path / "a") == pytest.approx(scores(tmp_path / "b"), abs=0.02)  # other stacks, other sums
    assert all(path.stat().st_mtime_ns == moment for path, moment in before.items())
