"""A run is a folder: what is in it, what is refused, and what a full disk leaves."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import atoll
from atoll import tree
from atoll.errors import RecordError
from atoll.experiment import Experiment, set_up
from atoll.records import RunFolder, clean
from atoll.runs import Run, RunLoop
from atoll.runs import environment as machine
from atoll.runs import lifecycle as begin

FILES = {"run.json", "record.jsonl", "clients.json", "checkpoint.pt", "model.pt", "best.pt", "preprocessing.json"}


def small(**changes: Any) -> dict[str, Any]:
    return {
        "rounds": 3,
        "data": "digits",
        "partition": {"name": "iid", "clients": 4},
        "cohort": {"name": "fixed", "size": 2},
        "task": {"model": "linear"},
        "local": {"max_steps": 2},
        "algorithm": {"name": "fedavg", "lr": 0.1},
        "engine": "loop",
        **changes,
    }


@pytest.fixture
def done(tmp_path: Path) -> Run:
    return atoll.run(small(), tmp_path / "run")


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


# ----------------------------------------------------------------------------------------------------- records


def test_a_run_is_a_folder_with_these_files(done: Run) -> None:
    assert {p.name for p in done.folder.iterdir()} == FILES


def test_run_json_says_everything_about_the_run(done: Run) -> None:
    info = json.loads((done.folder / "run.json").read_text())
    experiment = Experiment.parse(info["experiment"])  # the whole configuration: it reads back as itself
    assert experiment == Experiment.parse(small())
    assert info["digest"] == experiment.digest()
    assert experiment.local.epochs == info["experiment"]["local"]["epochs"] == 1  # with every default written out
    assert info["seed"] == 0
    assert info["data"] == {"digest": set_up(experiment).dataset.digest(), "train": 1438, "test": 359}
    assert info["partition"] == {
        "digest": set_up(experiment).partition.digest(),
        "split": set_up(experiment).training.digest(),
        "clients": 4,
        "examples": 1438,
        "sizes": {"min": 359, "median": 359.0, "max": 360},
    }
    assert info["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]  # a build adds +cpu or +cu130
    assert {"python", "numpy", "atoll"} <= info["versions"].keys()
    assert info["versions"]["code"] == machine.code()
    assert {"cpu", "cores", "memory_gb", "device", "threads"} <= info["hardware"].keys()
    assert {k: info["model"][k] for k in ("name", "parameters")} == {"name": "linear", "parameters": 650}
    assert len(info["model"]["initial"]) == 40
    assert info["engine"] == {"name": "loop", "reason": "chosen by name", "choice": {"name": "loop"}, "together": 1}
    assert (info["status"], info["format"], info["label"]) == ("finished", 1, "fedavg")


def test_every_round_is_a_line_of_strict_json(done: Run) -> None:
    lines = (done.folder / "record.jsonl").read_text().splitlines()
    entries = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert [e["round"] for e in entries] == [1, 2, 3]
    for e in entries:
        assert {"train_loss", "accuracy", "loss", "clients", "bytes", "cohort", "settings", "model"} <= e.keys()
        assert set(e["seconds"]) == {"sample", "train", "server", "evaluate", "record"}
        assert {way: 2 * 650 * 4 < size < 2 * (650 * 4 + 200) for way, size in e["bytes"].items()} == {
            "up": True,
            "down": True,
        }
        assert e["cohort"]["size"] == len(set(e["cohort"]["ids"])) == 2
        assert e["cohort"]["how"] == {"scheme": "fixed", "population": 4, "size": 2, "replacement": False}
        assert e["settings"] == {"algorithm.lr": 0.1, "algorithm.server_lr": 1.0}
    assert len({e["model"] for e in entries}) == 3
    assert done.history == entries


def test_the_digest_of_the_last_line_is_the_model_s(done: Run) -> None:
    model = {"params": done.params, "buffers": {}}
    assert done.history[-1]["model"] == tree.digest(model)


def test_what_is_no_number_is_null(tmp_path: Path) -> None:
    value = {"a": float("nan"), "b": [float("inf"), 1.5], "c": torch.tensor(2.0), "d": torch.tensor([1, 2]), "e": True}
    assert clean(value) == {"a": None, "b": [None, 1.5], "c": 2.0, "d": [1, 2], "e": True}
    folder = RunFolder(tmp_path)
    folder.append({"round": 1, "auroc": float("nan")})
    assert folder.record() == [{"round": 1, "auroc": None}]


def test_a_file_a_dict_and_an_experiment_are_the_same_run(tmp_path: Path, done: Run) -> None:
    experiment = Experiment.parse(small())
    (tmp_path / "e.toml").write_text(experiment.to_toml())
    for i, given in enumerate([experiment, tmp_path / "e.toml", str(tmp_path / "e.toml")]):
        assert atoll.run(given, tmp_path / str(i)).history[-1]["model"] == done.history[-1]["model"]


def test_a_folder_gets_a_name_and_then_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = atoll.run(small()), atoll.run(small())
    name = f"fedavg-{Experiment.parse(small()).digest()[:8]}"
    assert [first.folder, second.folder] == [Path("runs") / name, Path("runs") / f"{name}-2"]
    labelled = atoll.run(small(label="a/b:c"))
    assert labelled.folder.name.startswith("a-b-c-")
    assert atoll.run(small(), resume=True).folder == second.folder  # all are finished: the last one
    with pytest.raises(RecordError, match=r"there is no run to resume. Leave --resume out to start one"):
        atoll.run(small(seed=9), resume=True)


def test_an_unfinished_run_is_the_one_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    finished, half = atoll.run(small()), atoll.run(small())
    other = atoll.run(small())
    half._files.write_info({**half.info, "status": "interrupted"})
    assert atoll.run(small(), resume=True).folder == half.folder
    assert finished.folder != half.folder != other.folder


# ------------------------------------------------------------------------------------------------ what is refused


def test_a_run_is_not_overwritten(done: Run) -> None:
    before = contents(done.folder)
    with pytest.raises(RecordError, match=r"holds a run already. Go on with it \(--resume\), or name another folder"):
        atoll.run(small(), done.folder)
    with pytest.raises(RecordError, match=r"holds another experiment \(seed: 0, yours 1\)\. Resume it with"):
        atoll.run(small(seed=1), done.folder, resume=True)
    others = small(seed=1, rounds=99, local={"epochs": 7, "batch": 9})
    with pytest.raises(
        RecordError, match=r"rounds: \d+, yours 99; seed: 0, yours 1; .*local\.\w+: \d, yours .*; 2 more\)"
    ):
        atoll.run(others, done.folder, resume=True)
    assert contents(done.folder) == before


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", ["thesis.tex", "record.jsonl", "checkpoint.pt"])
def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path, name: str, resume: bool) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text("years of work")
    with pytest.raises(RecordError, match=f"holds '{name}', which is not part of a run. Name an empty or a new folder"):
        atoll.run(small(), tmp_path / "mine", resume=resume)
    assert contents(tmp_path / "mine") == {name: b"years of work"}


def test_an_empty_folder_is_as_good_as_a_new_one(tmp_path: Path) -> None:
    assert atoll.run(small(), tmp_path).folder == tmp_path


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": 2}', '{"format": 1}', '{"format": 1, "status": 5, "digest": "x"}', "\0\0"]
)
def test_a_damaged_run_json_is_refused_and_kept(done: Run, text: str) -> None:
    (done.folder / "run.json").write_text(text)
    before = contents(done.folder)
    with pytest.raises(RecordError, match=r"Run the experiment again in a new folder|version that wrote it"):
        atoll.run(small(), done.folder, resume=True)
    with pytest.raises(RecordError, match="holds a run already"):
        atoll.run(small(), done.folder)
    assert contents(done.folder) == before


def test_a_run_without_an_engine_is_refused(done: Run) -> None:
    done._files.write_info({**done.info, "status": "interrupted", "engine": {"choice": {"nmae": "loop"}}})
    with pytest.raises(RecordError, match="names no engine"):
        atoll.run(small(), done.folder, resume=True)


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "cut short":
        content = content[: len(content) // 2]
    elif how == "emptied":
        content = bytearray()
    elif how == "text":
        content = bytearray(b"not a checkpoint")
    path.write_bytes(content)


def test_a_run_says_which_code_made_it_and_which_went_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(done: int, rounds: int, entry: Any) -> None:
        if done == 1:
            os.kill(os.getpid(), signal.SIGINT)

    first = atoll.run(small(), tmp_path / "r", watch=interrupt)
    assert (first.status, first.info["versions"]["code"]) == ("interrupted", machine.code())
    monkeypatch.setattr(begin, "code", lambda: "another")
    again = atoll.run(small(), tmp_path / "r", resume=True)
    assert again.info["versions"]["code"] == f"{machine.code()}, another"


def test_the_code_s_digest_hangs_on_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "atoll"
    (package / "runs").mkdir(parents=True)
    (package / "runs" / "machine.py").write_text("")
    monkeypatch.setattr(machine, "__file__", str(package / "runs" / "machine.py"))
    seen = [machine.code.__wrapped__()]
    for path, text in (("a.py", ""), ("a.py", "x = 1"), ("b.py", ""), ("runs/c.py", "y")):
        (package / path).write_text(text)
        seen.append(machine.code.__wrapped__())
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("how", ["cut short", "emptied", "text", "foreign", "another round's", "no record"])
def test_a_damaged_checkpoint_is_refused_and_kept(tmp_path: Path, done: Run, how: str) -> None:
    done._files.write_info({**done.info, "status": "interrupted"})
    path = done.folder / "checkpoint.pt"
    if how == "foreign":
        torch.save({"weights": torch.zeros(3)}, path)
    elif how == "another round's":
        other = atoll.run(small(rounds=2), tmp_path / "other")
        path.write_bytes((other.folder / "checkpoint.pt").read_bytes())
        lines = (done.folder / "record.jsonl").read_text().replace(other.history[-1]["model"], "0" * 32)
        (done.folder / "record.jsonl").write_text(lines)
    elif how == "no record":
        (done.folder / "record.jsonl").unlink()
    else:
        damage(path, how)
    before = contents(done.folder)
    with pytest.raises(RecordError, match="Start again in a new folder"):
        atoll.run(small(), done.folder, resume=True)
    assert contents(done.folder) == before


@pytest.mark.parametrize("part", ["round", "memory"])
def test_any_bit_of_a_checkpoint_counts(tmp_path: Path, part: str) -> None:
    """A zip's own check sums are not looked at by torch: ours are."""
    experiment = small(algorithm={"name": "scaffold", "lr": 0.1})
    done = atoll.run(experiment, tmp_path / "run")
    done._files.write_info({**done.info, "status": "interrupted"})
    path = done.folder / ("checkpoint.pt" if part == "round" else f"memory-{len(done.history)}.rows")
    whole = path.read_bytes()
    if part == "round":
        raw = next(iter(tree.leaves(torch.load(path, weights_only=True)["parts"]["round"]))).numpy().tobytes()
    else:
        raw = whole
    for offset in (0, len(raw) // 2, len(raw) - 1):
        spoiled = bytearray(whole)
        spoiled[whole.index(raw) + offset] ^= 1
        path.write_bytes(spoiled)
        with pytest.raises(RecordError, match="Start again in a new folder"):
            atoll.run(experiment, done.folder, resume=True)
    path.write_bytes(whole)
    assert atoll.run(experiment, done.folder, resume=True).status == "finished"


def test_a_record_changed_by_hand_is_refused(done: Run) -> None:
    path = done.folder / "record.jsonl"
    lines = path.read_text().splitlines()
    for changed in (
        lines[1:],
        [lines[0], "{", lines[2]],
        [lines[0], lines[2], lines[1]],
        [*lines[:2], "[1]", lines[2]],
    ):
        path.write_text("\n".join(changed) + "\n")
        with pytest.raises(RecordError, match="The record was changed by hand"):
            Run(done.folder)


@pytest.mark.parametrize("torn", ['{"round": 4, "acc', "\0\0\0\0", '{"round": 4}', "\0\0\n"])
def test_a_torn_last_line_is_as_if_it_had_not_been_written(done: Run, torn: str) -> None:
    with (done.folder / "record.jsonl").open("a") as f:
        f.write(torn)
    assert len(Run(done.folder).history) == 3


def test_files_of_the_user_do_not_keep_a_run_from_going_on(done: Run) -> None:
    done._files.write_info({**done.info, "status": "interrupted"})
    (done.folder / "notes.txt").write_text("looks good")
    assert atoll.run(small(), done.folder, resume=True).status == "finished"


def test_two_processes_cannot_write_one_run(done: Run) -> None:
    done._files.write_info({**done.info, "status": "running"})
    code = (
        "import sys; from pathlib import Path; from atoll.records import RunFolder\n"
        f"with RunFolder(Path({str(done.folder)!r})).held(): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout
        assert other.stdout.readline() == "held\n"
        before = contents(done.folder)
        with pytest.raises(RecordError, match=r"another process is at work on this run. Wait for it, or stop it first"):
            atoll.run(small(), done.folder, resume=True)
        assert contents(done.folder) == before
        other.kill()  # a lock dies with its process
    assert atoll.run(small(), done.folder, resume=True).status == "finished"


def test_a_resumed_run_stays_on_its_device(done: Run) -> None:
    on_gpu = {**done.info, "status": "interrupted", "hardware": {**done.info["hardware"], "device": "cuda"}}
    done._files.write_info(on_gpu)
    with pytest.raises(RecordError, match="started on 'cuda', and would not be the same on 'cpu'"):
        atoll.run(small(), done.folder, resume=True, device="cpu")


# -------------------------------------------------------------------------------------------- disks that refuse


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """The system refuses to write more than this to any file, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_fills_up_leaves_the_last_good_files_whole(tmp_path: Path) -> None:
    big = small(task={"model": {"name": "mlp", "widths": [64]}}, checkpoint={"every": 1}, rounds=6)
    wanted = atoll.run(big, tmp_path / "whole")
    good: dict[str, bytes] = {}

    def watch(done: int, rounds: int, entry: object) -> None:
        if done == 3:  # before the checkpoint of round 3
            good.update(contents(tmp_path / "run"))
            resource.setrlimit(resource.RLIMIT_FSIZE, (8000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    with no_file_larger_than(1 << 40), pytest.raises(RecordError, match="What was there is still whole") as e:
        atoll.run(big, tmp_path / "run", watch=watch)
    assert "go on with --resume" in str(e.value)
    assert contents(tmp_path / "run")["checkpoint.pt"] == good["checkpoint.pt"]
    assert not [p for p in (tmp_path / "run").iterdir() if p.name.endswith(".draft")]
    assert Run(tmp_path / "run").status == "failed: RecordError"
    resumed = atoll.run(big, tmp_path / "run", resume=True)
    assert tree.digest(resumed.params) == tree.digest(wanted.params)


def test_a_record_that_cannot_grow_is_resumed_from_the_last_checkpoint(tmp_path: Path) -> None:
    wanted = atoll.run(small(rounds=6, checkpoint={"every": 2}), tmp_path / "whole")

    def watch(done: int, rounds: int, entry: object) -> None:
        if done == 3:  # half of the next line fits
            size = (tmp_path / "run" / "record.jsonl").stat().st_size + 100
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    with no_file_larger_than(1 << 40), pytest.raises(RecordError, match="could not be written"):
        atoll.run(small(rounds=6, checkpoint={"every": 2}), tmp_path / "run", watch=watch)
    assert len(Run(tmp_path / "run").history) == 3
    resumed = atoll.run(small(rounds=6, checkpoint={"every": 2}), tmp_path / "run", resume=True)
    assert [e["model"] for e in resumed.history] == [e["model"] for e in wanted.history]


def test_too_little_space_is_seen_before_training_and_no_folder_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    trained: list[object] = []
    monkeypatch.setattr(RunLoop, "rounds", lambda *_: trained.append(1))
    with pytest.raises(RecordError, match=r"the disk has 0 MB left, the run needs about 0 MB. Free some space"):
        atoll.run(small(), tmp_path / "a" / "b")
    assert not trained
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", ["file", "file/run", "file/deep/run"])
def test_a_place_below_a_file_is_refused_before_anything_is_loaded(
    tmp_path: Path, below: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr("atoll.runs.api.set_up", pytest.fail)
    with pytest.raises(RecordError, match=r"file: is a file. Name a folder with --out"):
        atoll.run(small(), tmp_path / below)
    assert contents(tmp_path) == {"file": b"mine"}


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of its own, where we may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], capture_output=True)
    if made.returncode:
        pytest.skip("no permission to mount")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_real_full_disk_and_a_real_read_only_one(tiny_disk: Path) -> None:
    plain = small(checkpoint={"every": 1}, rounds=50, evaluate={"every": 50})

    def watch(done: int, rounds: int, entry: object) -> None:
        if done == 2:
            free = os.statvfs(tiny_disk)
            (tiny_disk / "filler").write_bytes(b"x" * (free.f_bavail * free.f_frsize))

    with pytest.raises(RecordError, match=r"the disk has 0 MB left"):
        atoll.run(plain, tiny_disk / "run")
    short = {**plain, "rounds": 6}
    with pytest.raises(RecordError, match="could not be written"):
        atoll.run(short, tiny_disk / "run", watch=watch)
    (tiny_disk / "filler").unlink()
    assert atoll.run(short, tiny_disk / "run", resume=True).status == "finished"
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    with pytest.raises(RecordError, match=r"cannot be written. Name another folder"):
        atoll.run(plain, tiny_disk / "other")


def test_a_reason_is_not_hidden_by_a_disk_that_is_full_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunLoop, "rounds", lambda self, watch: self.folder.path.rename(tmp_path / "gone") and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        atoll.run(small(), tmp_path / "run")


# ------------------------------------------------------------------------------------------------------- memory


@pytest.mark.slow
def test_memory_stays_flat_over_many_rounds(tmp_path: Path) -> None:
    code = f"""
import resource, sys, os, threading
import atoll
seen = []
def watch(done, rounds, entry):
    if done in (100, 300):
        pages = int(open('/proc/self/statm').read().split()[1])
        seen.append((pages * resource.getpagesize(), len(os.listdir('/proc/self/fd')), threading.active_count()))
experiment = {small(algorithm={"name": "scaffold", "lr": 0.1}, rounds=300, engine="vector", evaluate={"every": 10})!r}
atoll.run(experiment, {str(tmp_path / "run")!r}, watch=watch)
(a, *rest), (b, *others) = seen
print(b - a, rest == others)
"""
    out = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    grown, same = out.stdout.split()
    assert int(grown) < 4e6
    assert same == "True"
