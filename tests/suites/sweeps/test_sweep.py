"""Sweeps that run: every cell once, whatever happens on the way, with the results of runs by hand."""

import contextlib
import json
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import atoll
from atoll.cli import main as cli
from atoll.errors import BusyError, ConfigError, DivergenceError, RecordError
from atoll.experiment import Experiment
from atoll.records import RunFolder
from atoll.records.sweep_folder import SweepFolder
from atoll.runs import Run
from atoll.schema.toml import inline
from atoll.suites.sweeps import Events, Sweep, SweepCell, expand
from atoll.suites.sweeps import cell_tasks as tasks
from atoll.suites.sweeps.cell_tasks import CellTask, patiently, perform
from atoll.suites.sweeps.worker import work
from tests.support.shell import Shell, shell
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("without_figures")
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["atoll.cli.sweep", "atoll.report", "atoll.suites.sweeps.sweep", "sklearn.datasets"])

BASE: dict[str, Any] = {
    "rounds": 3,
    "data": "digits",
    "partition": {"name": "iid", "clients": 3},
    "task": {"model": "linear"},
    "local": {"max_steps": 2},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "engine": "loop",
    "checkpoint": {"every": 2},
    "sweep": {"algorithm.lr": [0.1, 0.2], "seeds": 2},
}
BAD = {**BASE, "sweep": {"algorithm.lr": [0.1, 1e38, 0.2]}}  # the second diverges
LONG = {**BASE, "rounds": 40, "checkpoint": {"every": 5}, "local": {"max_steps": 8}}


class Log(Events):
    """Events, written down; and something to do at a moment."""

    def __init__(self, then: Callable[[str, int], None] | None = None) -> None:
        self.said: list[tuple[str, ...]] = []
        self.then = then

    def began(self, names: Sequence[str]) -> None:
        self.said.append(("began", *names))

    def round(self, names: Sequence[str], done: int, rounds: int, entry: Mapping[str, Any]) -> None:
        self.said.append(("round", *names))
        if self.then:
            self.then(names[0], done)

    def ended(self, name: str, state: str) -> None:
        self.said.append(("ended", name, state))

    def count(self, word: str) -> int:
        return sum(said[0] == word for said in self.said)


def written(raw: Mapping[str, Any], path: Path) -> Path:
    """The dict as a file."""
    text = Experiment.parse({k: v for k, v in raw.items() if k != "sweep"}).to_toml()
    axes = "".join(f"{json.dumps(axis)} = {inline(value)}\n" for axis, value in raw["sweep"].items())
    path.write_text(f"{text}\n[sweep]\n{axes}")
    return path


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    found = (p for p in sorted(folder.rglob("*")) if p.is_file())
    return {str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns) for p in found}


def models(sweep: Sweep) -> dict[str, list[str]]:
    """The digest of the model after every round, of every cell."""
    return {cell.digest: [line["model"] for line in sweep.run(cell).history] for cell in sweep.cells}


def states(folder: Path) -> dict[str, str]:
    return {c["name"]: c["state"] for c in json.loads((folder / "sweep.json").read_text())["cells"]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What becomes of LONG when nothing happens on the way: each cell run by hand."""
    place = tmp_path_factory.mktemp("whole")
    ran = {c.digest: atoll.run(c.experiment, place / c.digest) for c in expand(LONG)}
    return {digest: [line["model"] for line in run.history] for digest, run in ran.items()}


# -------------------------------------------------------------------------------------------------------- plain ones


def test_every_cell_is_run_as_by_hand(tmp_path: Path) -> None:
    log = Log()
    done = atoll.sweep.run(BASE, tmp_path / "sweep", events=log)
    assert done.status == "finished"
    assert [cell.name for cell in done.cells] == [f"lr={lr},seed={s}" for lr in (0.1, 0.2) for s in (0, 1)]
    for cell, run in zip(done.cells, done.runs, strict=True):
        assert run.folder == tmp_path / "sweep" / "cells" / f"{cell.name}-{cell.digest[:8]}"
        by_hand = atoll.run(cell.experiment, tmp_path / f"hand-{cell.name}")
        assert [e["model"] for e in run.history] == [e["model"] for e in by_hand.history]
    assert (log.count("began"), log.count("round"), log.count("ended")) == (4, 12, 4)
    said = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert said["axes"] == {"algorithm.lr": [0.1, 0.2], "seed": [0, 1]}
    assert [(c["name"], c["digest"], c["coordinates"], c["state"]) for c in said["cells"]] == [
        (c.name, c.digest, c.coordinates, "finished") for c in done.cells
    ]
    assert [tmp_path / "sweep" / c["folder"] for c in said["cells"]] == [run.folder for run in done.runs]
    page = done.report().read_text()
    assert "fedavg lr=0.2" in page
    assert done.run(done.cells[1]).info["seed"] == 1
    with pytest.raises(RecordError, match="has no run of 'lr=9'"):
        done.run("lr=9")


@pytest.mark.slow
def test_workers_do_the_same_with_their_share_of_the_threads_and_what_befalls_one_is_nothing_to_the_others(
    tmp_path: Path,
) -> None:
    def at_work(pid: int | None) -> bool:
        links = [link.readlink() for link in Path(f"/proc/{pid}/fd").iterdir()]
        return any("lr=0.3" in str(link) for link in links)  # the run's folder is open, since it is locked

    def kill(name: str, done: int) -> None:
        for child in multiprocessing.active_children() if (name, done) == ("lr=0.3", 1) else ():
            if at_work(child.pid):
                child.kill()

    raw = {**LONG, "local": {"max_steps": 20}, "sweep": {"algorithm.lr": [0.3, 1e38, 0.1, 0.2]}}
    before, log = torch.get_num_threads(), Log(kill)
    torch.set_num_threads(2)
    try:
        done = atoll.sweep.run(raw, tmp_path / "sweep", jobs=2, events=log)
    finally:
        torch.set_num_threads(before)
    assert done.failed.keys() == {"lr=0.3", "lr=1e+38"}
    assert done.failed["lr=0.3"] == "its worker process was ended by SIGKILL."
    assert "the loss or the update of" in done.failed["lr=1e+38"]
    assert (log.count("began"), log.count("ended")) == (4, 4)
    assert {run.info["hardware"]["threads"] for run in done.runs} == {1}
    for cell, run in zip(done.cells[2:], done.runs, strict=True):
        by_hand = atoll.run(cell.experiment, tmp_path / cell.name)
        assert [e["model"] for e in run.history] == [e["model"] for e in by_hand.history]


@pytest.mark.slow
def test_a_program_without_a_guard_is_told_so_and_begins_nothing_twice(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"import atoll\natoll.sweep.run({BASE!r}, 'runs', jobs=2)\n")
    done = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True)
    assert "if __name__ == '__main__':" in done.stderr.splitlines()[-1]
    assert done.stderr.count("Traceback") == 1  # of the program, not of its workers
    assert "another sweep is at work" not in done.stderr


def test_cells_that_stop_early_are_done(tmp_path: Path) -> None:
    raw = {**BASE, "rounds": 9, "stop": {"patience": 1, "threshold": 0.9}, "sweep": {"seeds": 2}}
    done = atoll.sweep.run(raw, tmp_path / "sweep")
    assert {run.status for run in done.runs} == {"stopped early: accuracy has not improved for 1 evaluations"}
    assert done.status == "finished"
    again = Log()
    assert atoll.sweep.run(raw, tmp_path / "sweep", resume=True, events=again).status == "finished"
    assert again.count("began") == 0


# ------------------------------------------------------------------------------------------------ resuming, refusing


def test_what_is_done_is_never_run_again(tmp_path: Path) -> None:
    atoll.sweep.run(BASE, tmp_path / "sweep")
    before = files(tmp_path / "sweep" / "cells")
    log = Log()
    again = atoll.sweep.run(BASE, tmp_path / "sweep", resume=True, events=log)
    assert again.status == "finished"
    assert len(again.runs) == 4
    assert files(tmp_path / "sweep" / "cells") == before
    assert {said[0] for said in log.said} == {"ended"}
    with pytest.raises(RecordError, match=r"sweep: holds a sweep already. Go on with it \(--resume\), or name another"):
        atoll.sweep.run(BASE, tmp_path / "sweep")
    assert files(tmp_path / "sweep" / "cells") == before


def test_a_changed_file_keeps_the_cells_that_are_the_same_and_adds_the_new_ones(tmp_path: Path) -> None:
    first = atoll.sweep.run({**BASE, "sweep": {"algorithm.lr": [0.1, 0.2]}}, tmp_path / "sweep")
    before = files(tmp_path / "sweep" / "cells")
    log = Log()
    wider = {**BASE, "sweep": {"algorithm.lr": [0.4, 0.1], "rounds": [3, 2]}}
    second = atoll.sweep.run(wider, tmp_path / "sweep", resume=True, events=log)
    assert [cell.name for cell in second.cells] == ["lr=0.4,rounds=3", "lr=0.4,rounds=2", "lr=0.1,rounds=3",
                                                    "lr=0.1,rounds=2"]  # fmt: skip
    assert log.count("began") == 3
    assert second.runs[2].folder == first.runs[0].folder  # though it has another name now
    after = files(tmp_path / "sweep" / "cells")
    assert {name: after[name] for name in before} == before
    said = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert [c["name"] for c in said["others"]] == ["lr=0.2"]
    log = Log()
    third = atoll.sweep.run(
        {**BASE, "sweep": {"algorithm.lr": [0.1, 0.2]}}, tmp_path / "sweep", resume=True, events=log
    )
    assert (third.status, log.count("began")) == ("finished", 0)


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ("sweep/notes.txt", "holds 'notes.txt', which is not part of a sweep. Name an empty or a new folder."),
        ("sweep/run.json", "holds a run, not a sweep. Name another folder with --out."),
        ("sweep", "is a file. Name a folder with --out."),
        ("sweep/cells/x/run.json", r"holds cells already. Go on \(--resume\), or name another folder."),
    ],
)
def test_a_place_that_is_taken_is_refused_and_left_alone(tmp_path: Path, there: str, words: str) -> None:
    (tmp_path / there).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / there).write_text("{}")
    before = files(tmp_path)
    with pytest.raises(RecordError, match=f"sweep: {words}"):
        atoll.sweep.run(BASE, tmp_path / "sweep")
    assert files(tmp_path) == before


def test_a_damaged_sweep_json_is_refused_and_can_be_removed(tmp_path: Path) -> None:
    atoll.sweep.run(BASE, tmp_path / "sweep")
    (tmp_path / "sweep" / "sweep.json").write_text("{")
    with pytest.raises(RecordError, match="Remove that file: the cells are still there, and --resume finds them"):
        atoll.sweep.run(BASE, tmp_path / "sweep", resume=True)
    (tmp_path / "sweep" / "sweep.json").unlink()
    log = Log()
    assert atoll.sweep.run(BASE, tmp_path / "sweep", resume=True, events=log).status == "finished"
    assert log.count("began") == 0


def test_two_sweeps_in_one_folder_at_once_are_refused(tmp_path: Path) -> None:
    def second(name: str, done: int) -> None:
        with pytest.raises(RecordError) as e:
            atoll.sweep.run(BASE, tmp_path / "sweep", resume=True)
        refused.append(str(e.value))

    refused: list[str] = []
    assert atoll.sweep.run(BASE, tmp_path / "sweep", events=Log(second)).status == "finished"
    who = rf"process {os.getpid()} on \S+, since \S+"
    assert len(refused) == 12
    assert re.search(rf"sweep: another sweep is at work here \({who}\). Wait for it or stop it first", refused[0])


def test_the_lock_of_a_dead_sweep_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the file system has no locks, and only the process id tells."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    place = SweepFolder(tmp_path / "sweep")

    def none(*args: object) -> None:
        raise OSError("no locks here")

    def let_in(pid: int) -> bool:
        (place.path / "sweep.lock").write_text(json.dumps({**note, "pid": pid}))
        try:
            with place.held():
                return True
        except RecordError:
            return False

    with place.held():
        note = json.loads((place.path / "sweep.lock").read_text())
    assert let_in(gone.pid)
    assert let_in(os.getppid())  # a number that is in use again, but not by a sweep: nobody holds the lock
    monkeypatch.setattr("atoll.records.lock.fcntl.flock", none)
    assert let_in(gone.pid)
    assert not let_in(os.getppid())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"jobs": 0}, "--jobs: must be a whole number above 0"),
        ({"executor": "slurm"}, "--executor: must be 'local' or 'ray'"),
        ({"address": "auto"}, "--address: is the address of a Ray cluster. Add --executor ray"),
        ({"device": "tpu"}, "device: must be 'auto', 'cpu', 'cuda' or one GPU"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(tmp_path: Path, given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        atoll.sweep.run(BASE, tmp_path / "sweep", **given)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="out: is missing"):
        atoll.sweep.run(BASE)


def test_without_ray_the_executor_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        ConfigError, match=r"Ray is not installed .* pip install 'atoll\[ray\]', or use --executor local"
    ):
        atoll.sweep.run(BASE, tmp_path / "sweep", executor="ray")
    assert not list(tmp_path.iterdir())


# ----------------------------------------------------------------------------------------------- failing, being killed


def test_a_cell_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    done = atoll.sweep.run(BAD, tmp_path / "sweep")
    assert done.status == "failed"
    assert list(done.failed) == ["lr=1e+38"]
    assert "the loss or the update of" in done.failed["lr=1e+38"]
    assert [run.status for run in done.runs] == ["finished", "finished"]
    assert states(tmp_path / "sweep")["lr=1e+38"].startswith("failed: round")
    log = Log()
    assert atoll.sweep.run(BAD, tmp_path / "sweep", resume=True, events=log).status == "failed"
    assert [said for said in log.said if said[0] == "began"] == [("began", "lr=1e+38")]  # only that one, again


def test_a_bug_leaves_its_traceback_and_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(experiment: Experiment, *rest: Any, **named: Any) -> Run:
        if experiment.seed == 0:
            raise ZeroDivisionError("a bug")
        return atoll.run(experiment, *rest, **named)

    monkeypatch.setattr(tasks, "run", broken)
    done = atoll.sweep.run({**BASE, "sweep": {"seeds": 2}}, tmp_path / "sweep")
    assert [run.info["seed"] for run in done.runs] == [1]
    path = re.search(r"ZeroDivisionError: a bug \(traceback in (.*)\)", done.failed["seed=0"])
    assert path
    assert "in broken" in Path(path[1]).read_text()
    monkeypatch.undo()
    assert atoll.sweep.run({**BASE, "sweep": {"seeds": 2}}, tmp_path / "sweep", resume=True).status == "finished"


def lines(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("cells/*/record.jsonl"))


@pytest.mark.slow
def test_kill_9_in_the_middle_of_a_cell_and_resume_is_as_if_nothing_had_happened(
    tmp_path: Path, whole: dict[str, list[str]]
) -> None:
    folder = tmp_path / "sweep"
    for lost in (20, 70):  # in the first cell, and in a later one
        victim = PROCESSES.Process(target=atoll.sweep.run, args=(LONG, folder), kwargs={"resume": True})
        victim.start()
        until(lambda lost=lost: lines(folder) >= lost, victim.is_alive)
        victim.kill()
        victim.join()
        assert "running" in states(folder).values()
    before = {name: kept for name, kept in files(folder / "cells").items() if "lr=0.1,seed=0" in name}
    done = atoll.sweep.run(LONG, folder, resume=True)
    assert done.status == "finished"
    assert models(done) == whole
    assert {name: kept for name, kept in files(folder / "cells").items() if "lr=0.1,seed=0" in name} == before


@pytest.mark.slow
def test_a_worker_whose_sweep_is_gone_checkpoints_and_leaves(tmp_path: Path, whole: dict[str, list[str]]) -> None:
    cell, place = expand(LONG)[0], SweepFolder(tmp_path / "sweep")
    ours, theirs = multiprocessing.Pipe()
    worker = PROCESSES.Process(target=work, args=(theirs, []))
    worker.start()
    theirs.close()
    ours.send(CellTask((cell,), (place.place(cell),)))
    until(lambda: lines(place.path) >= 8, worker.is_alive)
    ours.close()  # as the system does when the sweep is killed
    worker.join()
    assert worker.exitcode == 0
    left = Run(place.place(cell))
    assert left.status == "interrupted"
    assert len(left.history) < 40
    again = atoll.sweep.run(LONG, place.path, resume=True)
    assert again.status == "finished"
    assert models(again) == whole


def test_a_sweep_waits_for_a_cell_that_a_worker_is_just_leaving(tmp_path: Path) -> None:
    tried: list[float] = []

    def take() -> str:
        tried.append(time.monotonic())
        with RunFolder(tmp_path).held():
            return "taken"

    with RunFolder(tmp_path).held(), pytest.raises(BusyError, match="another process is at work on this run"):
        patiently(take, seconds=0.2)  # not for ever
    tried.clear()
    with contextlib.ExitStack() as held:
        held.enter_context(RunFolder(tmp_path).held())
        threading.Timer(0.3, held.close).start()
        assert patiently(take, seconds=30) == "taken"
        assert len(tried) > 1


@pytest.mark.parametrize("step", ["create", "held"])
def test_a_cell_that_another_worker_takes_while_this_one_sets_up_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It is free when it is looked at, and has been begun (and left again, or not) when it is to be held."""
    cell = expand(BASE)[0]
    other = contextlib.ExitStack()
    original, folder = getattr(RunFolder, step), tmp_path / "cell"

    def overtaken(self: RunFolder, *rest: Any) -> Any:
        monkeypatch.undo()
        if step == "create":  # it is still at work
            self.path.mkdir()
            other.enter_context(self.held())
            threading.Timer(0.2, other.close).start()
        else:  # it came to an end meanwhile
            atoll.run(cell.experiment, self.path)
        return original(self, *rest)

    monkeypatch.setattr(RunFolder, step, overtaken)
    states = perform(CellTask((cell,), (folder,)), Events())
    assert states == {cell.name: "finished"}
    assert len(Run(folder).history) == 3


def typed(words: Sequence[str], where: Path, out: Path) -> None:
    """A command in a process of its own, in front of its terminal."""
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background of a shell begin without one
    os.chdir(where)
    sys.argv = list(words)
    with out.open("w") as f, contextlib.redirect_stdout(f), contextlib.redirect_stderr(f):
        cli.main()


@pytest.mark.slow
def test_ctrl_c_checkpoints_the_running_cells_and_prints_the_command_that_goes_on(
    tmp_path: Path, whole: dict[str, list[str]]
) -> None:
    (tmp_path / "my files").mkdir()
    file, folder, said = (
        written(LONG, tmp_path / "my files" / "long.toml"),
        tmp_path / "runs" / "long",
        tmp_path / "said",
    )
    words = ["atoll", "sweep", str(file), "--set", "label=it's mine", "--jobs", "2"]
    for _ in range(3):
        shutil.rmtree(folder, ignore_errors=True)
        process = PROCESSES.Process(target=typed, args=(words, tmp_path, said))
        process.start()
        until(lambda: lines(folder) >= 8, process.is_alive)
        os.killpg(process.pid or 0, signal.SIGINT)  # as a terminal does: to everybody in front
        process.join()
        if process.exitcode != 0:
            break  # else a busy machine was done before we could stop it
    assert process.exitcode == 130, said.read_text()
    assert "Traceback" not in said.read_text()
    begun = [run_json.parent for run_json in folder.glob("cells/*/run.json")]  # a cell may be stopped before it has one
    stopped = [run for run in map(Run, begun) if run.status != "finished"]
    for run in stopped:
        assert run.status == "interrupted"
        assert torch.load(run.folder / "checkpoint.pt", weights_only=True)["round"] == len(run.history) < 40
    ended = list(states(folder).values())
    assert set(ended) <= {"finished", "interrupted", "waiting"}
    assert len(stopped) <= ended.count("interrupted") <= 2
    assert stopped
    assert f"Stopped after {ended.count('finished')} of 4 cells; those under way have a checkpoint." in said.read_text()
    found = shlex.split(said.read_text().split("Go on with:\n")[1].strip())
    assert found == [*words, "--out", "runs/long", "--resume"]
    found.remove("--jobs")  # alone it is the same, and quicker for a test
    found.remove("2")
    process = PROCESSES.Process(target=typed, args=(found, tmp_path, said))
    process.start()
    process.join()
    assert process.exitcode == 0, said.read_text()
    ran = [[line["model"] for line in Run(p).history] for p in sorted(folder.glob("cells/*"))]
    assert sorted(ran) == sorted(whole.values())  # a label changes the digest, not the models


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_a_sweep_in_this_process(tmp_path: Path, number: signal.Signals) -> None:
    def stop(name: str, done: int) -> None:
        if (name, done) == ("lr=0.1,seed=1", 2):
            signal.raise_signal(number)

    before = signal.getsignal(number)
    half = atoll.sweep.run(BASE, tmp_path / "sweep", events=Log(stop))
    assert half.status == "interrupted"
    assert list(half.states.values()) == ["finished", "interrupted", "waiting", "waiting"]
    assert signal.getsignal(number) is before
    again = atoll.sweep.run(BASE, tmp_path / "sweep", resume=True)
    by_hand = atoll.run(again.cells[1].experiment, tmp_path / "hand")
    assert [e["model"] for e in again.runs[1].history] == [e["model"] for e in by_hand.history]


def test_a_sweep_under_torchrun_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="Start it without torchrun"):
        atoll.sweep.run(BASE, tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


# ------------------------------------------------------------------------------------------------------------- stacks


def test_a_stack_is_one_call_and_a_stack_that_fails_is_run_cell_by_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seam to whatever runs several experiments at once; here one after the other."""
    calls: list[int] = []

    def stack(experiments: Sequence[Experiment], folders: Sequence[Path], **named: Any) -> list[Run]:
        calls.append(len(experiments))
        if any(e.algorithm["lr"] > 1 for e in experiments):
            raise DivergenceError("one of them")
        parts = zip(experiments, folders, named.pop("callbacks"), named.pop("watch"), strict=True)
        return [atoll.run(e, f, **named, callbacks=c, watch=w) for e, f, c, w in parts]

    monkeypatch.setattr(tasks, "run_together", stack)
    raw = {**BASE, "engine": "vector"}
    log = Log()
    done = atoll.sweep.run(raw, tmp_path / "a", events=log)
    assert (done.status, calls) == ("finished", [4])
    assert (log.count("began"), log.count("round"), log.count("ended")) == (1, 12, 4)
    atoll.sweep.run(raw, tmp_path / "b", stack=False)
    atoll.sweep.run({**raw, "sweep": {**raw["sweep"], "stack": False}}, tmp_path / "c")
    assert calls == [4]
    bad = atoll.sweep.run({**BAD, "engine": "vector"}, tmp_path / "d")
    assert calls == [4, 3]
    assert list(bad.failed) == ["lr=1e+38"]
    assert len(bad.runs) == 2


def test_what_is_left_of_a_stack_goes_on_as_a_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[int]] = []

    def stack(experiments: Sequence[Experiment], folders: Sequence[Path], **named: Any) -> list[Run]:
        calls.append([e.seed for e in experiments])
        parts = zip(experiments, folders, named.pop("callbacks"), named.pop("watch"), strict=True)
        return [atoll.run(e, f, **named, callbacks=c, watch=w) for e, f, c, w in parts]

    raw = {**BASE, "engine": "vector", "sweep": {"seeds": 4}}
    cells: list[SweepCell] = expand(raw)
    atoll.sweep.run({**raw, "sweep": {"seeds": [1]}}, tmp_path / "sweep")
    monkeypatch.setattr(tasks, "run_together", stack)
    done = atoll.sweep.run(raw, tmp_path / "sweep", resume=True)
    assert calls == [[0, 2, 3]]
    assert [cell.digest for cell in done.cells] == [cell.digest for cell in cells]


# ------------------------------------------------------------------------------------------------------- the command


@pytest.fixture
def sh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    written(BASE, tmp_path / "e.toml")
    written(BAD, tmp_path / "bad.toml")
    return shell(tmp_path, monkeypatch, capsys)


def test_the_command_ends_with_a_table_over_seeds_and_a_report(sh: Shell, tmp_path: Path) -> None:
    code, out, err = sh("sweep e.toml")
    assert (code, err) == (0, "")
    assert re.search(r"fedavg lr=0.2 +2 +\d+\.\d ± *\d+\.\d", out)  # two seeds, a mean and an interval
    assert "4 of 4: lr=0.2,seed=1 finished, accuracy 0." in out
    lines = (tmp_path / "runs/e/table.csv").read_text().splitlines()
    assert lines[0] == "method,seed,rounds,status,accuracy,loss,train_loss,folder"
    assert len(lines) == 5
    assert "| fedavg lr=0.2 | 2 |" in (tmp_path / "runs/e/table.md").read_text()
    assert "\\toprule" in (tmp_path / "runs/e/table.tex").read_text()
    (tmp_path / "runs/e/report.html").unlink()
    again = sh("report runs/e --table mine.md")
    assert again.code == 0
    assert "Report: runs/e/report.html" in again.out
    assert (tmp_path / "mine.md").read_text() == (tmp_path / "runs/e/table.md").read_text()
    assert "--table: 'mine.doc' must end in .md, .tex, .csv." in sh("report runs/e --table mine.doc").err
    assert "Cells:  runs/e/cells" in out
    assert "Report: runs/e/report.html" in out
    assert "fedavg lr=0.1" in (tmp_path / "runs" / "e" / "report.html").read_text()
    code, _, err = sh("sweep e.toml")
    assert code == 1
    assert "runs/e: holds a sweep already. Go on with it (--resume)" in err
    assert sh("sweep e.toml --resume")[0] == 0


def test_a_dry_run_prints_the_cells_and_writes_nothing(sh: Shell, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    code, out, _ = sh("sweep e.toml --dry-run --set engine=vector --set sweep.seeds=3")
    assert code == 0
    assert "6 cells in 1 tasks" in out
    assert re.search(r"lr=0.2,seed=2 +│ [0-9a-f]{8} │ +1 │ to run", out)
    assert "6 cells in 6 tasks" in sh("sweep e.toml --dry-run --set sweep.seeds=3 --set engine=vector --no-stack")[1]
    assert sorted(tmp_path.rglob("*")) == before


def test_cells_that_fail_are_reported_at_the_end_with_status_1(sh: Shell) -> None:
    code, out, err = sh("sweep bad.toml --out here")
    assert code == 1
    assert "Report: here/report.html" in out
    assert "1 of 3 cells failed; --resume tries them again:" in err
    assert re.search(r"lr=1e\+38: round \d: the loss or the update of", err)


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("sweep e.toml --set algorithm.lr=0.5 --set rounds=0", 2, "rounds: must be at least 1 (got 0)."),
        (
            "sweep e.toml --set 'sweep.algorithm.lr=[0.1, -1]'",
            2,
            "cells lr=-1,seed=0; lr=-1,seed=1: algorithm.lr: must",
        ),
        ("sweep e.toml --jobs 0", 2, "--jobs: must be a whole number above 0 (got 0)."),
        ("sweep e.toml --executor slurm", 2, "slurm"),
        ("sweep e.toml --address auto", 2, "--address: is the address of a Ray cluster."),
        ("sweep nothing.toml", 2, "nothing.toml: there is no such file."),
        ("run e.toml", 2, "sweep: this file has a [sweep] table: use atoll sweep"),
        ("check e.toml", 2, "sweep: this file has a [sweep] table: use atoll sweep"),
    ],
)
def test_mistakes_go_to_stderr_with_a_code_and_leave_nothing(
    sh: Shell, tmp_path: Path, command: str, code: int, words: str
) -> None:
    before = sorted(tmp_path.iterdir())
    found, out, err = sh(command)
    assert found == code
    assert words in err
    assert words not in out
    assert sorted(tmp_path.iterdir()) == before


def test_a_file_without_a_sweep_is_refused_with_what_instead(sh: Shell, tmp_path: Path) -> None:
    (tmp_path / "plain.toml").write_text(expand(BASE)[0].experiment.to_toml())
    code, _, err = sh("sweep plain.toml")
    assert code == 2
    assert "plain.toml: has no [sweep] table. For a single run use: atoll run plain.toml." in err
