"""Suites that run: every experiment once, whatever happens on the way, and results that say what the records say."""

import json
import math
import multiprocessing
import os
import shlex
import signal
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import atoll
from atoll import records
from atoll.cli import bench as cli_bench
from atoll.cli import common
from atoll.cli import main as cli
from atoll.data.measures import label_skew
from atoll.errors import AtollError, ConfigError, RecordError
from atoll.experiment import override, set_up
from atoll.experiment import read as read_file
from atoll.records import Cell, Results, RunFolder, Trace
from atoll.report.suite import summary
from atoll.suites import Bench, parse, prepare, read
from atoll.suites.collect import trace
from atoll.suites.skew import skew
from atoll.suites.suite_progress import SuiteBar, TimeLeft
from atoll.suites.sweeps import CellLines, Events
from atoll.suites.sweeps.signals import deadline, terminable
from atoll.suites.terminal import describe_suites, second_stage
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("without_figures")
FILE = Path(__file__).parent / "digits.toml"
RAW = read_file(FILE)
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["atoll.cli.bench", "atoll.suites", "sklearn.datasets"])
MAIN = ["main:*"]


class Log(Events):
    """What happened, written down; and something to do at a moment."""

    def __init__(self, then: Callable[[str, int], None] | None = None) -> None:
        self.began_: list[str] = []
        self.then = then

    def began(self, names: Sequence[str]) -> None:
        self.began_ += names

    def round(self, names: Sequence[str], done: int, rounds: int, entry: Mapping[str, Any]) -> None:
        if self.then:
            self.then(names[0], done)


def models(folder: Path) -> dict[str, list[str]]:
    """The digests of every model of every run, by experiment."""
    found = {}
    for path in folder.glob("cells/*"):
        found[RunFolder(path).info["digest"]] = [entry["model"] for entry in RunFolder(path).record()]
    return found


def plain(found: Results) -> list[Any]:
    """Results without what a clock decides."""

    def still(run: Trace) -> Trace:
        return replace(run, seconds=(), together=1)

    return [
        replace(
            cell,
            runs=tuple(map(still, cell.runs)),
            trials=tuple(replace(t, runs=tuple(map(still, t.runs))) for t in cell.trials),
        )
        for cell in found.cells
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """The whole suite, undisturbed."""
    return atoll.bench.run(FILE, tmp_path_factory.mktemp("bench") / "whole")


# ---------------------------------------------------------------------------------------------------------- collecting


def test_a_suite_is_tuned_run_and_collected(whole: Bench) -> None:
    assert (whole.status, whole.failed, whole.left) == ("finished", {}, 0)
    found = whole.results
    assert found == records.read_results(whole.folder / "results.json")
    assert (found.suite, found.size, found.tuning, found.metric, found.scale) == (
        "digits", "full", "validation", "accuracy", 100
    )  # fmt: skip
    assert [len(cell.runs) for cell in found.cells] == [2, 2, 2, 2, 1, 1, 1]
    assert [cell.wanted for cell in found.cells] == [2, 2, 2, 2, 1, 1, 1]
    assert [len(cell.trials) for cell in found.cells] == [0, 2, 0, 2, 0, 2, 0]
    assert found.cells[-1].quirk == "its mu is far too large"
    assert found.cells[-1].stands_for == "digits/iid/fedprox"
    assert found.cells[0].untuned == "It has no setting of its own: the learning rate is the same for all."
    assert found.cells[1].untuned is None
    assert (found.titles, found.references) == ({"main": "Table 1"}, {"longer": ""})
    assert found.missing == {"svhn/*/*": "no package carries it"}
    assert found.made["command"] == "atoll bench digits.toml"
    assert found.made["versions"]["atoll"] == atoll.__version__
    assert found.made["machine"]["cpu"]
    assert str(whole.folder.parent) not in (whole.folder / "results.json").read_text()


def test_the_chosen_setting_is_the_one_with_the_best_held_out_score(whole: Bench) -> None:
    for job, cell in zip(whole.work.jobs, whole.results.cells, strict=True):
        if not job.tuned:
            assert cell.settings == {}
            continue
        scores = {}
        for option in job.options:
            (path,) = whole.folder.glob(f"cells/*{option.trials[0].digest[:8]}")
            scores[option.settings["algorithm.mu"]] = RunFolder(path).record()[-1]["clients"]["accuracy"]["mean"]
        best = max(scores, key=lambda mu: scores[mu])
        assert cell.settings == {"algorithm.mu": best}
        assert [t.score for t in cell.trials] == pytest.approx(list(scores.values()), rel=1e-5)
        assert [t.runs[0].validation for t in cell.trials] == pytest.approx(list(scores.values()), rel=1e-5)
        chosen = next(o for o in job.options if o.settings == cell.settings)
        assert [run.digest for run in cell.runs] == [c.digest for c in chosen.finals]
        assert all(run.validation is None for run in cell.runs)


def test_a_trace_is_what_the_record_says(whole: Bench) -> None:
    cell = whole.results.cells[2]
    for run in cell.runs:
        (path,) = whole.folder.glob(f"cells/*{run.digest[:8]}")
        record, info = RunFolder(path).record(), RunFolder(path).info
        assert run.seed == info["seed"]
        assert run.rounds == (1, 2, 3)
        assert run.values == pytest.approx([e["accuracy"] for e in record], rel=1e-5)
        moved = [e["bytes"]["up"] + e["bytes"]["down"] for e in record]
        assert run.bytes == pytest.approx([sum(moved[: i + 1]) for i in range(3)], rel=1e-5)
        spent = [sum(s for phase, s in e["seconds"].items() if phase != "evaluate") for e in record]
        assert run.seconds == pytest.approx([sum(spent[: i + 1]) for i in range(3)], rel=1e-4)
        assert run.clients == pytest.approx(record[-1]["clients"]["accuracy"], rel=1e-4)
        assert run.partition == info["partition"]["digest"]
        assert run.together == info["engine"]["together"] == 2  # two seeds were one stack


def test_a_run_alone_says_so(tmp_path: Path) -> None:
    experiment = prepare(FILE).first()[0].experiment
    assert atoll.run(experiment, tmp_path / "run").info["engine"]["together"] == 1


def test_only_rounds_that_were_measured_are_kept_and_what_is_no_number_is_nan() -> None:
    info = {"seed": 3, "digest": "d", "status": "finished", "engine": {}, "partition": {"digest": "p"}, "label": "x",
            "experiment": {"evaluate": {"holdout": 0.1}}}  # fmt: skip
    line = {"bytes": {"up": 1, "down": 2}, "seconds": {"train": 1.0, "evaluate": 5.0, "ranks": [1, 2]}}
    record = [{"round": 1, **line}, {"round": 2, "loss": None, "clients": {"loss": {"mean": 0.5}}, **line}]
    found = trace(info, record, "loss")
    assert (found.rounds, found.bytes, found.seconds, found.validation) == ((2,), (6.0,), (2.0,), 0.5)
    assert math.isnan(found.values[0])
    assert trace(info, record, "clients.loss.mean").values == (0.5,)
    with pytest.raises(RecordError, match="the runs of x have no 'auroc'"):
        trace(info, record, "auroc")


def test_skew_is_measured_on_the_first_seeds_clients(whole: Bench) -> None:
    for job, cell in zip(whole.work.jobs, whole.results.cells, strict=True):
        setup = set_up(job.options[0].finals[0].experiment, "cpu")
        assert setup.dataset.labels is not None
        by_hand = label_skew(setup.partition, setup.dataset.labels)
        assert cell.skew["emd"] == pytest.approx(by_hand.emd, rel=1e-5)
        assert cell.skew["jensen_shannon"] == pytest.approx(by_hand.jensen_shannon, rel=1e-5)
        assert cell.skew["effective_classes"] == pytest.approx(by_hand.effective_classes, rel=1e-5)
        assert cell.skew["size_gini"] == pytest.approx(by_hand.gini, rel=1e-4)
        assert cell.skew["clients"] == 4
    assert skew({"experiment": {"partition": {"name": "compose", "of": ["iid", {"name": "noise", "level": 2}]}}}) == {
        "noise": 2.0
    }


def test_runs_of_one_seed_are_paired(whole: Bench) -> None:
    for block in whole.results.blocks():
        for row in whole.results.rows(block).values():
            for seed in (0, 1):
                assert len({run.partition for cell in row.values() for run in cell.runs if run.seed == seed}) <= 1
    seeds = {run.partition for cell in whole.results.cells for run in cell.runs if cell.row == ("digits", "iid")}
    assert len(seeds) == 2


def test_a_finished_run_keeps_its_record_and_model_and_a_trial_its_record(whole: Bench) -> None:
    kept = {"run.json", "record.jsonl", "clients.json"}
    for job in whole.work.jobs:
        for option in job.options:
            for cell in option.trials:
                (path,) = whole.folder.glob(f"cells/*{cell.digest[:8]}")
                assert {p.name for p in path.iterdir()} == kept
            for cell in option.finals:
                for path in whole.folder.glob(f"cells/*{cell.digest[:8]}"):
                    assert {p.name for p in path.iterdir()} == {*kept, "model.pt", "best.pt", "preprocessing.json"}


def test_the_papers_tuning_chooses_on_the_test_data_and_runs_nothing_twice(tmp_path: Path) -> None:
    log = Log()
    done = atoll.bench.run(FILE, tmp_path / "b", only=["main:*/iid/fedprox"], tuning="paper", events=log)
    (cell,) = done.results.cells
    assert len(log.began_) == len(set(log.began_)) == 4  # two settings, two seeds
    means = [statistics.fmean(run.last for run in t.runs) for t in cell.trials]
    assert [t.score for t in cell.trials] == pytest.approx(means, rel=1e-5)
    best = cell.trials[means.index(max(means))]
    assert (cell.settings, cell.runs) == (best.settings, best.runs)
    assert done.results.tuning == "paper"


def test_lower_is_better_where_the_suite_says_so(tmp_path: Path) -> None:
    raw = override(RAW, ["metric=loss", "better=lower", "value.algorithm.fedprox.grid={algorithm.lr=[0.001, 0.2]}"])
    done = atoll.bench.run(parse(raw, "x"), tmp_path / "b", only=["main:*/iid/fedprox"])
    (cell,) = done.results.cells
    assert cell.settings == {"algorithm.lr": 0.2}
    assert cell.trials[1].score < cell.trials[0].score


# ------------------------------------------------------------------------------------------------------- running twice


def test_what_is_done_is_never_run_again(tmp_path: Path, whole: Bench) -> None:
    first, second, third = Log(), Log(), Log()
    folder = tmp_path / "b"
    atoll.bench.run(FILE, folder, only=["main:*/iid/*"], seeds=1, events=first)
    part = records.read_results(folder)
    assert [(c.name, len(c.runs), c.wanted) for c in part.cells] == [
        ("digits/iid/fedavg", 1, 1), ("digits/iid/fedprox", 1, 1)
    ]  # fmt: skip
    before = {p: p.stat().st_mtime_ns for p in folder.glob("cells/*/*")}
    with pytest.raises(RecordError, match=r"holds runs of a suite already. Go on with them \(--resume"):
        atoll.bench.run(FILE, folder)
    done = atoll.bench.run(FILE, folder, resume=True, events=second)
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert not set(first.began_) & set(second.began_)
    assert len(first.began_) + len(second.began_) == len(whole.work.first()) + 5
    assert plain(done.results) == plain(whole.results)
    atoll.bench.run(FILE, folder, resume=True, events=third)
    assert third.began_ == []


def test_results_keep_what_an_earlier_call_has_run(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    atoll.bench.run(FILE, folder, only=["main:*/iid/fedavg"])
    atoll.bench.run(FILE, folder, only=["main:*/dirichlet(0.5)/fedavg"], resume=True)
    found = records.read_results(folder)
    assert [cell.name for cell in found.cells] == ["digits/iid/fedavg", "digits/dirichlet(0.5)/fedavg"]
    assert found.made["command"] == "atoll bench digits.toml --only 'main:*/dirichlet(0.5)/fedavg'"


@pytest.mark.slow
def test_ctrl_c_and_then_resume_is_as_if_nothing_had_happened(tmp_path: Path, whole: Bench) -> None:
    def stop(name: str, done: int) -> None:
        if "trial" in name and done == 2:
            signal.raise_signal(signal.SIGINT)

    stopped = atoll.bench.run(FILE, tmp_path / "b", events=Log(stop))
    assert stopped.status == "interrupted"
    assert not stopped.late
    assert any(cell.runs for cell in stopped.results.cells)
    assert any(not cell.runs and not cell.failed for cell in stopped.results.cells)
    again = atoll.bench.run(FILE, tmp_path / "b", resume=True)
    assert again.status == "finished"
    assert models(again.folder) == models(whole.folder)
    assert plain(again.results) == plain(whole.results)


def test_settings_are_chosen_only_when_all_trials_are_over_and_run_only_if_nothing_stopped_them(tmp_path: Path) -> None:
    def stop(name: str, done: int) -> None:
        if "dirichlet" in name and "mu=0.1-trial" in name:
            signal.raise_signal(signal.SIGINT)

    log = Log(stop)
    done = atoll.bench.run(FILE, tmp_path / "b", only=["main:*/fedprox"], stack=False, events=log)
    assert (done.status, done.left, len(log.began_)) == ("interrupted", 2, 4)
    assert all("trial" in name for name in log.began_)
    chosen, open_ = done.results.cells
    assert (len(chosen.trials), bool(chosen.settings), chosen.runs) == (2, True, ())
    assert (len(open_.trials), open_.settings, open_.runs, open_.failed) == (1, {}, (), {})


@pytest.mark.slow
def test_after_the_budget_nothing_new_begins_and_resume_goes_on(tmp_path: Path, whole: Bench) -> None:
    def dawdle(name: str, done: int) -> None:
        time.sleep(0.3)

    log = Log(dawdle)
    stopped = atoll.bench.run(FILE, tmp_path / "b", budget=0.5, events=log)
    assert (stopped.status, stopped.late) == ("interrupted", True)
    assert stopped.left > 0
    assert set(log.began_) < {cell.name for cell in stopped.work.first()}
    assert {RunFolder(p).info["status"] for p in (tmp_path / "b" / "cells").iterdir()} <= {"interrupted", "finished"}
    assert (tmp_path / "b" / "results.json").exists()
    again = atoll.bench.run(FILE, tmp_path / "b", resume=True)
    assert plain(again.results) == plain(whole.results)


def test_a_deadline_rings_once_inside_and_never_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Timer, "cancel", lambda self: None)  # as if it came too late
    with terminable():
        with pytest.raises(KeyboardInterrupt), deadline(time.monotonic() + 0.05):
            time.sleep(30)
        with deadline(time.monotonic() + 0.2):
            pass
        time.sleep(0.4)
        with deadline(None):
            pass


LONG: dict[str, Any] = {"overrides": ["rounds=9"], "only": ["main:*/iid/*"]}


def go(folder: Path) -> None:
    atoll.bench.run(FILE, folder, resume=True, **LONG)


def lines(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("cells/*/record.jsonl"))


@pytest.mark.slow
def test_kill_9_and_then_resume_is_as_if_nothing_had_happened(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    victim = PROCESSES.Process(target=go, args=(folder,))
    victim.start()
    until(lambda: lines(folder) >= 22, victim.is_alive)
    victim.kill()
    victim.join()
    again = atoll.bench.run(FILE, folder, resume=True, **LONG)
    assert again.status == "finished"
    alone = atoll.bench.run(FILE, tmp_path / "alone", **LONG)
    assert models(folder) == models(alone.folder)
    assert plain(again.results) == plain(alone.results)


# ------------------------------------------------------------------------------------------------------------- failing


def diverging(*more: str) -> Any:
    """A suite where some settings of fedprox cannot be learned with."""
    return parse(override(RAW, ["value.algorithm.fedprox.grid={algorithm.lr=[1e30, 0.1]}", *more]), "x")


def test_a_trial_that_diverges_scores_worst_and_is_not_tried_again(tmp_path: Path) -> None:
    log = Log()
    done = atoll.bench.run(diverging(), tmp_path / "b", only=["main:*/iid/*"])
    assert (done.status, done.failed) == ("finished", {})
    cell = done.results.cells[1]
    assert cell.settings == {"algorithm.lr": 0.1}
    assert len(cell.runs) == 2
    assert [(t.settings["algorithm.lr"], len(t.runs), math.isnan(t.score)) for t in cell.trials] == [
        (1e30, 0, True), (0.1, 1, False)
    ]  # fmt: skip
    assert "is not finite" in cell.failed["trial algorithm.lr = 1e+30"]
    atoll.bench.run(diverging(), tmp_path / "b", only=["main:*/iid/*"], resume=True, events=log)
    assert log.began_ == []


def test_a_method_whose_trials_all_diverge_fails_and_the_others_go_on(tmp_path: Path) -> None:
    suite = diverging("value.algorithm.fedprox.grid={algorithm.lr=[1e30, 1e31]}")
    done = atoll.bench.run(suite, tmp_path / "b", only=["main:*/iid/*"])
    assert done.status == "failed"
    assert list(done.failed) == [f"digits/iid/fedprox, trial algorithm.lr = {lr}" for lr in (1e30, 1e31)]
    assert [len(cell.runs) for cell in done.results.cells] == [2, 0]


def test_a_run_that_cannot_begin_fails_alone_and_is_tried_again(tmp_path: Path) -> None:
    raw = override(RAW, ["value.partition.iid.partition.clients=100000"])
    log = Log()
    done = atoll.bench.run(parse(raw, "x"), tmp_path / "b", only=["main:*/fedavg"])
    assert done.status == "failed"
    assert list(done.failed) == ["digits/iid/fedavg, seed 0", "digits/iid/fedavg, seed 1"]
    assert [len(cell.runs) for cell in done.results.cells] == [0, 2]
    atoll.bench.run(parse(raw, "x"), tmp_path / "b", only=["main:*/fedavg"], resume=True, events=log)
    assert set(log.began_) == {"main-digits-iid-fedavg-seed=0", "main-digits-iid-fedavg-seed=1"}


def test_why_a_cell_failed_names_files_from_the_suites_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("atoll.suites.sweeps.cell_tasks.run", broken)
    folder = tmp_path / "b"
    done = atoll.bench.run(parse(override(RAW, ["tuning=none"]), "x"), folder, only=["main:*/iid/fedavg"], seeds=1)
    why = done.failed["digits/iid/fedavg, seed 0"]
    assert str(tmp_path) not in why
    assert (folder / why.partition("(traceback in ")[2].rstrip(")")).is_file()


def test_a_metric_that_the_data_does_not_have_fails_with_what_there_is(tmp_path: Path) -> None:
    done = atoll.bench.run(
        parse(override(RAW, ["metric=mse", "tuning=none"]), "x"), tmp_path / "b", only=["main:*/iid/fedavg"]
    )
    assert done.status == "failed"
    assert "have no 'mse'" in done.failed["digits/iid/fedavg, seed 0"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"seeds": 0}, "--seeds: must be a whole number above 0"),
        ({"tuning": "best"}, "--tuning: must be 'validation', 'paper' or 'none'"),
        ({"jobs": 0}, "--jobs: must be a whole number above 0"),
        ({"only": ["x"]}, "--only 'x': matches none of the 7 cells"),
        ({"overrides": ["ronds=3"]}, "ronds: is not an option of an experiment. Did you mean rounds?"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(tmp_path: Path, given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        atoll.bench.run(FILE, tmp_path / "b", **given)
    assert not list(tmp_path.iterdir())


# --------------------------------------------------------------------------------------------------------- the command


def typed(monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str]:
    """What a command prints, and its exit status; its tasks run in this process, which is quicker."""
    out = StringIO()
    monkeypatch.setattr(cli_bench, "workers", lambda device: 1)
    monkeypatch.setattr("sys.argv", ["atoll", *words])
    for console in (common.console, common.errors):
        monkeypatch.setattr(console, "width", 100)
    status = 0
    try:
        with redirect_stdout(out), redirect_stderr(out):
            cli.main()
    except SystemExit as e:
        status = int(e.code or 0)
    return status, out.getvalue()


def test_a_dry_run_says_that_grids_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    _, said = typed(monkeypatch, "bench", str(FILE), "--dry-run", "--tuning", "none")
    assert "tuning: none, so grids are not tried: --tuning validation" in " ".join(said.split())
    _, said = typed(monkeypatch, "bench", str(FILE), "--dry-run", "--tuning", "validation")
    assert "grids are not tried" not in " ".join(said.split())


def test_a_dry_run_says_what_would_run_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    status, said = typed(monkeypatch, "bench", str(FILE), "--dry-run")
    assert status == 0
    assert "main:digits/dirichlet(0.5)/fedprox" in said
    assert "7 cells, 17 runs, 0 of the first stage done, 10 tasks left; about 672 steps of clients" in said
    assert "Folder: runs/bench/digits" in said
    assert not list(tmp_path.iterdir())


def test_the_command_prints_the_table_and_where_the_results_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, said = typed(monkeypatch, "bench", str(FILE), "--only", "main:*/iid/fedavg")
    assert status == 0
    found = records.read_results(Path("runs/bench/digits"))
    values = [100 * run.last for run in found.cells[0].runs]
    assert f" {statistics.fmean(values):.1f}±{statistics.stdev(values):.1f}" in said  # alone, it is not the best
    assert "Results: runs/bench/digits/results.json" in said
    status, said = typed(monkeypatch, "bench", str(FILE))
    assert (status, "--resume: what is done is kept" in said) == (1, True)
    status, said = typed(monkeypatch, "bench", str(FILE), "--size", "smoke", "--only", "*fedavg")
    assert "(1 seed)" in said
    assert "One seed: a single run, not a result." in said
    assert Path("runs/bench/digits-smoke/results.json").exists()


def test_a_failed_cell_is_reported_and_the_status_is_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change = "partition={name='iid', clients=100000}"
    words = ["bench", str(FILE), "--only", "main:*/iid/fedavg", "--set", change, "--out", str(tmp_path / "b")]
    status, said = typed(monkeypatch, *words)
    assert status == 1
    assert "digits/iid/fedavg, seed 1: " in said
    assert "failed" in said
    assert "Traceback" not in said


def test_an_interrupted_command_prints_the_one_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(self: CellLines, names: Sequence[str], done: int, rounds: int, entry: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    folder = tmp_path / "my results"
    words = ["bench", str(FILE), "--only", "main:*/fedavg", "--set", "label=it's mine"]
    with monkeypatch.context() as patched:
        patched.setattr(CellLines, "round", stop)
        status, said = typed(patched, *words, "--out", str(folder))
    assert status == 130
    command = shlex.split(said.partition("Go on with:\n")[2].strip().partition("\n")[0])
    assert command == ["atoll", *words, "--out", str(folder), "--resume"]
    status, said = typed(monkeypatch, *command[1:])
    assert (status, "Go on" in said) == (0, False)


def test_a_used_up_budget_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["bench", str(FILE), "--set", "rounds=3000", "--budget", "0.3s", "--out", str(tmp_path / "b")]
    status, said = typed(monkeypatch, *words)
    assert status == 0
    assert "The budget of 0.3s is used up: 7 of 7 cells are not done" in said
    assert "--budget 0.3s" in said.partition("Go on with:")[2]


@pytest.mark.parametrize(
    ("said", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("1h30m", 5400), ("5 min", 300)]
)
def test_budgets_are_times(said: str, seconds: float) -> None:
    assert cli_bench.parsed(said) == seconds


@pytest.mark.parametrize("said", ["", "x", "3x", "-3m", "0", "3m x", "m"])
def test_what_is_no_time_is_refused(said: str) -> None:
    with pytest.raises(ConfigError, match="--budget: must be a time such as 90s, 30m or 2h"):
        cli_bench.parsed(said)


def test_suites_can_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    ((_, title, lines),) = describe_suites([FILE])
    assert "Two methods on digits" in title
    assert lines[-2:] == ["smoke: 2 cells, 4 runs, 8 rounds", "full: 7 cells, 17 runs, 56 rounds"]
    assert "Did you mean 'suites'?" in typed(monkeypatch, "list", "suits")[1]


@pytest.mark.slow
def test_the_suites_of_the_package_can_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    status, said = typed(monkeypatch, "list", "suites")
    assert (status, "Suites (" in said) == (0, True)


@pytest.mark.slow
def test_the_command_gives_a_task_to_every_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = cli_bench.workers("cpu")
    assert 1 <= asked <= (os.cpu_count() or 1)
    words = ["bench", str(FILE), "--only", "main:*/iid/fedavg", "--out", str(tmp_path / "b")]
    status, said = typed(monkeypatch, *words, "--jobs", str(max(2, asked)))
    assert (status, "Results: " in said) == (0, True)
    alone = atoll.bench.run(FILE, tmp_path / "alone", only=["main:*/iid/fedavg"])
    assert models(tmp_path / "b") == models(alone.folder)


# ------------------------------------------------------------------------------------------------- tables and progress


def row(*cells: tuple[str, Sequence[float], int, str | None]) -> Results:
    made = []
    for name, values, wanted, quirk in cells:
        runs = tuple(Trace(i, "x", (1,), (v,), (1,), (1,)) for i, v in enumerate(values))
        made.append(Cell("b", {"data": "d", "algorithm": name}, runs, wanted=wanted, quirk=quirk))
    return Results("s", "S", "full", "accuracy", True, ("data", "algorithm"), tuple(made), scale=100.0)


def shown(found: Results) -> str:
    out = StringIO()
    Console(file=out, width=120).print(summary(found, "b"))
    return out.getvalue()


def test_the_best_is_marked_among_those_that_can_be_compared() -> None:
    said = shown(
        row(
            ("plain", [0.5, 0.6], 2, None),
            ("better", [0.6, 0.7], 2, None),
            ("quirky", [0.9, 0.9], 2, "a mistake"),
            ("lucky", [0.99], 3, None),
            ("none", [], 2, None),
        )
    )
    assert "*65.0±7.1" in said
    assert said.count("*") == 2  # and in the caption
    assert "55.0±7.1" in said
    assert "99.0 (1 seed of 3)" in said
    assert "90.0 " in said  # equal seeds: no spread
    assert "90.0±" not in said
    assert "over 1 or 2 seeds" in said


def test_many_methods_stand_below_each_other() -> None:
    many = [(f"method{i}", [0.1 * i, 0.1 * i], 2, None) for i in range(8)]
    lines_ = [line.split() for line in shown(row(*many)).splitlines()]
    assert ["method7", "*70.0"] in lines_  # equal seeds: no spread
    assert ["algorithm", "d"] in lines_
    few = [line.split() for line in shown(row(*many[:3])).splitlines()]
    assert ["d", "0.0", "10.0", "*20.0"] in few


def test_the_time_that_is_left_follows_the_pace_of_runs_of_a_kind() -> None:
    work = prepare(FILE, only=MAIN, tuning="none")
    cells = work.first()
    clock = [0.0]
    estimate = TimeLeft(now=lambda: clock[0])
    estimate.expect(cells)
    assert math.isnan(estimate.seconds)
    first, second = cells[0].name, cells[1].name  # two seeds of one kind, as one stack
    estimate.began([first, second])
    for done in (1, 2, 3):
        for name in (first, second):
            clock[0] += 2.0
            estimate.round(name, done, 3)
    estimate.ended(first)
    estimate.ended(second)
    assert estimate.seconds == pytest.approx(2.0 * 3 * (len(cells) - 2))  # others at the pace of all
    other = next(c for c in cells if "dirichlet" in c.name)
    estimate.began([other.name])
    clock[0] += 10.0
    estimate.round(other.name, 1, 3)
    twin = [c for c in cells if c.experiment.partition == other.experiment.partition and c is not other
            and c.experiment.algorithm["name"] == other.experiment.algorithm["name"]]  # fmt: skip
    rest = len(cells) - 3 - len(twin)
    pace = (12.0 + 10.0) / 7
    assert estimate.seconds == pytest.approx(2 * 10.0 + len(twin) * 3 * 10.0 + rest * 3 * pace)
    assert TimeLeft(2, left=estimate.left, paces=estimate.paces).seconds == pytest.approx(estimate.seconds / 2)


def test_a_bar_counts_both_stages_and_what_was_done_before() -> None:
    work = prepare(FILE, only=MAIN)
    first, second = work.first(), second_stage(work)
    bar = SuiteBar(second, 1, Console(file=StringIO()))
    bar.expect(first, first[2:])
    whole = bar.cells.bar.tasks[0]
    assert (whole.total, whole.completed) == (len(first) + len(second), 2)
    for cell in first[2:]:
        bar.ended(cell.name, "finished")
    bar.expect(second[:2], second[:2])  # fewer were chosen, since trials failed
    assert (whole.total, whole.completed) == (len(first) + 2, len(first))


def test_an_error_is_one_of_ours_for_every_name_that_is_wrong(tmp_path: Path) -> None:
    for wrong in ("nosuch", str(tmp_path), str(tmp_path / "x.toml")):
        with pytest.raises(AtollError):
            read(wrong)


def test_json_holds_no_nan(tmp_path: Path) -> None:
    done = atoll.bench.run(diverging(), tmp_path / "b", only=["main:*/iid/fedprox"])

    def refuse(word: str) -> None:
        raise AssertionError(word)

    json.loads((done.folder / "results.json").read_text(), parse_constant=refuse)


def test_a_budget_that_ends_with_the_last_cell_leaves_nothing_to_go_on_with(whole: Bench) -> None:
    assert whole.left == 0
    assert Bench(whole.folder, whole.work, True, True).status == "finished"
