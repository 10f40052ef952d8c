"""Killed, interrupted or failed: a resumed run ends as if nothing had happened, bit for bit."""

import json
import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import atoll
from atoll import tree
from atoll.core import Total, Transform
from atoll.experiment import Experiment
from atoll.records import RunFolder
from atoll.runs import Run
from atoll.tree import Tree
from tests.support.marks import slow, slow_among
from tests.support.waiting import until

EVERY = 3
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["atoll.runs", "sklearn.datasets"])  # imported once, not once a victim


class GoneError(Exception):
    """What a test stops a run with."""


@dataclass(frozen=True)
class Fading(Transform):
    """Every round counts less than the one before: a transform with a state on the server."""

    def init(self, like: Tree) -> tuple[Tree, Tree]:
        return {"seen": torch.zeros(())}, {}

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        seen = state["seen"] + 1
        return replace(total, value=tree.scale(total.value, 1 / seen)), {"seen": seen}


def experiment(**changes: Any) -> dict[str, Any]:
    return {
        "rounds": 8,
        "data": "digits",
        "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.5},
        "cohort": {"name": "fixed", "size": 4},
        "task": {"model": {"name": "mlp", "widths": [16], "dropout": 0.3}},
        "local": {"max_steps": 5},
        "algorithm": {"name": "scaffold", "lr": {"name": "cosine", "start": 0.1, "over": 8, "end": 0.02}},
        "transform": [{"name": "top_k", "share": 0.3}],
        "engine": "vector",
        "evaluate": {"every": 2, "holdout": 0.2},
        "checkpoint": {"every": EVERY},
        **changes,
    }


def untimed(record: Any) -> Any:
    if isinstance(record, dict):
        return {k: untimed(v) for k, v in record.items() if k != "seconds"}
    return [untimed(x) for x in record] if isinstance(record, list) else record


def same(a: Run, b: Run) -> None:
    """The same parameters and the same records, but for the seconds."""
    assert tree.digest(a.params) == tree.digest(b.params)
    assert untimed(a.history) == untimed(b.history)
    assert a.status == b.status
    assert a.best == b.best
    if a.best:
        assert tree.digest(a.best_params) == tree.digest(b.best_params)
    looks = [json.loads((r.folder / "clients.json").read_text()) for r in (a, b)]
    assert looks[0] == looks[1]
    parts = [torch.load(r.folder / "checkpoint.pt", weights_only=True) for r in (a, b)]
    assert parts[0]["digest"] == parts[1]["digest"]  # server, transforms and every client's memory


def stopped(given: dict[str, Any], folder: Path, at: int) -> None:
    """Run until this round, then fail."""

    def watch(done: int, rounds: int, entry: object) -> None:
        if done == at:
            raise GoneError

    with pytest.raises(GoneError):
        atoll.run(given, folder, watch=watch)
    assert Run(folder).status == "failed: GoneError"


KINDS: dict[str, dict[str, Any]] = {
    "memory, residuals, dropout, a schedule": {},
    "captured steps": {"rounds": 12, "local": {"max_steps": 12}, "cohort": "everyone"},
    "one by one": {"engine": "loop"},
    "side by side": {"engine": "threads"},
    "whatever is fastest": {"engine": "auto"},
    "a plateau": {
        "algorithm": {"name": "fedavg", "lr": {"name": "plateau", "start": 0.1, "patience": 1, "threshold": 0.9}},
        "evaluate": {"every": 1},
    },
    "a server with momentum": {"algorithm": {"name": "fedadam", "lr": 0.05}, "transform": []},
    "personal models": {"algorithm": {"name": "ditto", "lr": 0.05}, "transform": []},
    "noise on the sum": {
        "transform": [
            "equal_weights",
            {"name": "clip_l2", "max_norm": 1.0},
            {"name": "gaussian_noise", "noise_multiplier": 0.1},
        ]
    },
    "a bound that moves, banded noise": {
        "transform": ["equal_weights", "adaptive_clip", {"name": "banded_noise", "noise_multiplier": 0.1, "bands": 3}],
        "cohort": {"name": "cyclic", "size": 2, "min_separation": 3},
    },
    "a secure sum, clients lost": {
        "transform": ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}],
        "secure": {"protocol": "secagg", "dropout": 0.2, "threshold": 0.4},
    },
    "a transform that remembers": {"transform": [{"name": f"{__name__}:Fading"}]},
    "no server": {"algorithm": {"name": "fedavg", "lr": 0.1}, "round": "gossip"},
    "cohorts that vary": {"cohort": {"name": "poisson", "size": 2.0}},
}


@pytest.mark.parametrize("kind", slow_among(KINDS, "whatever is fastest", "captured steps", "one by one"))
def test_a_run_that_failed_goes_on_from_its_checkpoint(tmp_path: Path, kind: str) -> None:
    given = experiment(**KINDS[kind])
    stopped(given, tmp_path / "half", at=5)
    started, engine = (Run(tmp_path / "half").info[k] for k in ("started", "engine"))
    whole = atoll.run({**given, "engine": engine["choice"]}, tmp_path / "whole")  # auto may find another
    resumed = atoll.run(given, tmp_path / "half", resume=True)
    same(resumed, whole)
    assert resumed.info["started"] == started
    assert resumed.info["engine"] == engine


def test_a_resumed_run_keeps_the_engine_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = experiment(engine="auto")
    monkeypatch.setattr("atoll.engines.choice.is_dense", lambda model: False)
    monkeypatch.setattr("atoll.engines.choice.fastest", lambda engines, trial: ("loop", "measured"))
    stopped(given, tmp_path / "run", at=4)
    monkeypatch.setattr("atoll.engines.choice.fastest", pytest.fail)  # another might be faster today
    resumed = atoll.run(given, tmp_path / "run", resume=True)
    assert (resumed.status, resumed.info["engine"]["name"]) == ("finished", "loop")


def test_without_a_checkpoint_it_begins_again(tmp_path: Path) -> None:
    whole = atoll.run(experiment(), tmp_path / "whole")
    stopped(experiment(), tmp_path / "half", at=2)
    assert not (tmp_path / "half" / "checkpoint.pt").exists()
    same(atoll.run(experiment(), tmp_path / "half", resume=True), whole)


CLIP = ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}]
MEASURED: dict[str, dict[str, Any]] = {
    "a server that waits": {"clock": {"seconds_per_step": "measured", "devices": "phones"}},
    "no server": {"round": "gossip", "algorithm": {"name": "fedavg", "lr": 0.1}, "cohort": "everyone"},
    "a server that does not wait": {
        "round": {"name": "fedbuff", "buffer": 2, "concurrency": 4},
        "algorithm": {"name": "fedavg", "lr": 0.1},
    },
    "a protocol": {"secure": {"protocol": "secagg", "threshold": 0.4}, "transform": CLIP},
}


@pytest.mark.parametrize("kind", MEASURED)
def test_what_was_measured_when_a_run_began_is_kept_before_its_first_round(tmp_path: Path, kind: str) -> None:
    """A run that is killed early goes on with the seconds it had: with others it would be another run."""
    clock = {"seconds_per_step": "measured", "devices": "phones"}
    given = experiment(**{"transform": [], "cohort": {"name": "fixed", "size": 3}, "clock": clock} | MEASURED[kind])
    stopped(given, tmp_path / "half", at=2)
    before = Run(tmp_path / "half").history
    resumed = atoll.run(given, tmp_path / "half", resume=True)
    assert resumed.status == "finished"
    assert untimed(resumed.history[:2]) == untimed(before)
    assert all(line["clock"]["end"] > line["clock"]["start"] for line in resumed.history)


def test_a_run_without_a_checkpoint_measures_when_it_begins_again(tmp_path: Path) -> None:
    given = experiment(clock={"seconds_per_step": "measured", "devices": "phones"})
    stopped(given, tmp_path / "half", at=2)
    (tmp_path / "half" / "checkpoint.pt").unlink()  # killed before it was written
    resumed = atoll.run(given, tmp_path / "half", resume=True)
    assert resumed.history[0]["clock"]["end"] > 0


def test_resuming_where_nothing_is_yet_begins(tmp_path: Path) -> None:
    """A run killed before its first line must be resumable by the same command."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".run.json.1.draft").write_text("{")
    whole = atoll.run(experiment(), tmp_path / "whole")
    same(atoll.run(experiment(), tmp_path / "empty", resume=True), whole)
    same(atoll.run(experiment(), tmp_path / "new", resume=True), whole)
    assert not list((tmp_path / "empty").glob(".*"))


def test_a_finished_run_is_returned_as_it_is(tmp_path: Path) -> None:
    done = atoll.run(experiment(), tmp_path / "run")
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in done.folder.iterdir()}
    again = atoll.run(experiment(), tmp_path / "run", resume=True, watch=pytest.fail)
    assert {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in done.folder.iterdir()} == before
    same(again, done)


def test_a_run_that_stopped_early_does_not_go_on(tmp_path: Path) -> None:
    given = experiment(stop={"patience": 1, "threshold": 0.9}, evaluate={"every": 1}, rounds=20)
    done = atoll.run(given, tmp_path / "run")
    assert done.status.startswith("stopped early")
    before = {p.name: p.read_bytes() for p in done.folder.iterdir()}
    again = atoll.run(given, tmp_path / "run", resume=True, watch=pytest.fail)
    assert again.status == done.status
    assert {p.name: p.read_bytes() for p in done.folder.iterdir()} == before


def test_a_run_that_goes_between_its_checkpoint_and_its_best_model_has_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = experiment(algorithm={"name": "fedavg", "lr": {"name": "step", "start": 0.3, "every": 2, "factor": 100.0}})
    whole = atoll.run(given, tmp_path / "whole")
    assert whole.best is not None
    assert whole.best["round"] < EVERY  # so that no later checkpoint writes it again

    def gone(self: RunFolder, state: object) -> None:
        raise GoneError

    with monkeypatch.context() as broken:
        broken.setattr(RunFolder, "save_best", gone)
        with pytest.raises(GoneError):
            atoll.run(given, tmp_path / "half")
    assert not (tmp_path / "half" / "best.pt").exists()
    same(atoll.run(given, tmp_path / "half", resume=True), whole)


@pytest.mark.parametrize("metric", ["auroc", "loss"])
def test_a_number_that_is_none_counts_the_same_before_and_after(tmp_path: Path, metric: str) -> None:
    """NaN in memory is null on disk: stopping must not tell them apart."""
    x, y = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    better = "lower" if metric == "loss" else "higher"
    lr = {"name": "plateau", "start": 0.1, "patience": 1, "metric": metric, "better": better}
    options: dict[str, Any] = {
        "data": (x, y),
        "test": (x[:5].sign() * 3e38, torch.zeros(5, dtype=torch.int64)),  # one class: no AUROC; too large: no loss
        "clients": [range(20), range(20, 40)],
        "algorithm": {"name": "fedavg", "lr": lr},
        "rounds": 30,
        "engine": "loop",
        "stop": {"patience": 6, "metric": metric},
        "checkpoint": {"every": 1},
    }
    model = nn.Linear(3, 2)
    nn.init.constant_(model.weight, 2.0)
    whole = atoll.simulate(model, out=tmp_path / "whole", **options)
    assert whole.status == f"stopped early: {metric} has not improved for 6 evaluations"
    assert whole.final["auroc"] is whole.final["loss"] is None

    def watch(done: int, rounds: int, entry: object) -> None:
        if done == 4:
            raise GoneError

    with pytest.raises(GoneError):
        atoll.simulate(model, out=tmp_path / "half", watch=watch, **options)
    same(atoll.simulate(model, out=tmp_path / "half", resume=True, **options), whole)


# --------------------------------------------------------------------------------------------------- real processes


def lines(folder: Path) -> int:
    path = folder / "record.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


LONG = experiment(rounds=36, engine="auto", task={"model": {"name": "mlp", "widths": [200], "dropout": 0.3}})
MOMENTS: dict[str, Callable[[Path, int], bool]] = {
    "as soon as there is a folder": lambda f, _: f.exists(),
    "before the first checkpoint": lambda f, _: lines(f) >= 1,
    "while a checkpoint is written": lambda f, _: any(f.glob(".checkpoint.pt.*.draft")),
    "between two checkpoints": lambda f, before: lines(f) >= before + EVERY + 2,
    "while a line is written": lambda f, before: lines(f) >= before + 1,
}


@pytest.mark.parametrize(
    ("engine", "moments"),
    [("vector", ["between two checkpoints"]), slow("auto", list(MOMENTS))],
)
def test_kill_9_at_any_moment_loses_no_more_than_the_rounds_since_the_last_checkpoint(
    tmp_path: Path, engine: str, moments: Sequence[str]
) -> None:
    file, folder = tmp_path / "e.toml", tmp_path / "victim"
    file.write_text(Experiment.parse({**LONG, "engine": engine}).to_toml())
    for name in moments:
        moment = MOMENTS[name]
        before = lines(folder)
        victim = PROCESSES.Process(target=atoll.run, args=(file, folder), kwargs={"resume": True})
        victim.start()
        until(lambda moment=moment, before=before: moment(folder, before), victim.is_alive)
        victim.kill()
        victim.join()
        assert victim.exitcode == -signal.SIGKILL, name
        saved = torch.load(folder / "checkpoint.pt", weights_only=True)["round"] if lines(folder) > EVERY else 0
        assert lines(folder) - saved <= EVERY, name
        assert saved < LONG["rounds"], name
    found = atoll.run(file, folder, resume=True)
    same(found, atoll.run({**LONG, "engine": found.info["engine"]["choice"]}, tmp_path / "whole"))
    assert not list(folder.glob(".*"))


@pytest.mark.slow
def test_ctrl_c_checkpoints_and_prints_the_command_that_goes_on(tmp_path: Path) -> None:
    (tmp_path / "my files").mkdir()
    file = tmp_path / "my files" / "an experiment.toml"
    file.write_text(Experiment.parse(LONG).to_toml())
    changed = ["--set", "rounds=20", "--set", "label=it's mine"]
    command = [sys.executable, "-m", "atoll", "run", str(file), *changed, "--out", "a run", "--device", "cpu"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True) as process:
        until(lambda: lines(tmp_path / "a run") >= 4, lambda: process.poll() is None)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130, err
    assert "Traceback" not in out + err
    half = Run(tmp_path / "a run")
    assert half.status == "interrupted"
    assert f"Stopped after round {len(half.history)} of 20, with a checkpoint." in out
    assert half.params  # what it knows so far
    words = shlex.split(out.split("Go on with:\n")[1].strip())
    assert words[0] == "atoll"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(words, cwd=tmp_path, env={**os.environ, "PATH": path}, check=True, capture_output=True)
    found = Run(tmp_path / "a run")
    same(found, atoll.run({**LONG, "rounds": 20, "engine": found.info["engine"]["choice"]}, tmp_path / "whole"))


def test_an_interrupt_waits_for_the_end_of_the_round_and_a_second_one_does_not(tmp_path: Path) -> None:
    def watch(done: int, rounds: int, entry: object) -> None:
        if done == 2:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    half = atoll.run(experiment(engine="loop"), tmp_path / "a", watch=watch)
    assert (half.status, len(half.history)) == ("interrupted", 2)
    assert half.params
    assert signal.getsignal(signal.SIGINT) is before  # the program's own handler is back

    def twice(done: int, rounds: int, entry: object) -> None:
        if done == 2:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        atoll.run(experiment(engine="loop"), tmp_path / "b", watch=twice)
    whole = atoll.run(experiment(engine="loop"), tmp_path / "whole")
    for name in ("a", "b"):
        same(atoll.run(experiment(engine="loop"), tmp_path / name, resume=True), whole)
