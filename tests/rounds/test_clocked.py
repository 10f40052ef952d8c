"""Rounds in virtual time: who is late is not in the sum, and nothing else changes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.clock import COUNTED, DROPPED, LATE, Clock, ClockTable, Timeline, retime
from atoll.errors import ConfigError
from atoll.experiment import Experiment, set_up
from atoll.records import RunFolder
from atoll.runs import run_together

GIVEN: dict[str, Any] = {
    "rounds": 5,
    "engine": "vector",
    "data": "digits",
    "partition": {"name": "dirichlet", "alpha": 0.3, "clients": 12},
    "task": {"model": "linear"},
    "local": {"batch": 16},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "evaluate": {"clients": 0},
    "checkpoint": {"every": 1},
}
CLOCK = {"seconds_per_step": 0.1, "devices": "phones"}
STRICT = {**CLOCK, "deadline": 1.0, "dropout": 0.2}
PRIVATE = ["equal_weights", {"name": "clip_l2", "max_norm": 0.5}, {"name": "gaussian_noise", "noise_multiplier": 2.0}]


def run(folder: Path, clock: dict[str, Any] | None = None, **changes: Any) -> atoll.Run:
    return atoll.run({**GIVEN, **changes, **({"clock": clock} if clock else {})}, folder)


def models(run: atoll.Run) -> list[str]:
    return [line["model"] for line in run.history]


def record(run: atoll.Run) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k not in ("seconds", "clock")} for line in RunFolder(run.folder).record()]


def times(run: atoll.Run) -> list[dict[str, Any]]:
    return RunFolder(run.folder).times()


def test_a_clock_that_waits_for_everybody_changes_nothing_but_the_time(tmp_path: Path) -> None:
    plain, clocked = run(tmp_path / "plain"), run(tmp_path / "clocked", CLOCK)
    assert record(plain) == record(clocked)
    assert times(plain) == []
    ends = [line["clock"]["end"] for line in clocked.history]
    assert ends == sorted(ends)
    assert [line["clock"]["start"] for line in clocked.history] == [0.0, *ends[:-1]]
    assert all(line["status"] == [COUNTED] * 12 for line in times(clocked))


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_who_is_late_or_lost_might_as_well_not_have_been_asked(algorithm: str, tmp_path: Path) -> None:
    """Neither its update nor what it keeps: the same as a run to whose rounds only the others come."""
    learner = {"algorithm": {"name": algorithm, "lr": 0.1}}
    late = run(tmp_path / "late", STRICT, **learner)
    counted = np.array([np.array(line["status"]) == COUNTED for line in times(late)])
    assert {LATE, DROPPED} <= {s for line in times(late) for s in line["status"]}
    trace = counted.T.astype(int).tolist()
    others = run(tmp_path / "others", cohort={"name": "available", "trace": trace}, **learner)
    assert models(late) == models(others)
    for line, came in zip(RunFolder(late.folder).record(), counted, strict=True):
        assert line["cohort"]["ids"] == np.flatnonzero(came).tolist()
        assert line["clock"]["counted"] == came.sum()


def test_a_resumed_run_has_the_same_times_and_models(tmp_path: Path) -> None:
    file = {**GIVEN, "clock": STRICT, "rounds": 5}
    whole = atoll.run(file, tmp_path / "whole")
    atoll.run({**file, "rounds": 3}, tmp_path / "part")
    torn = RunFolder(tmp_path / "part")
    torn.append_times({**torn.times()[-1], "round": 4})  # of a round whose line was never written
    assert len(torn.times()) == 4
    torn.cut(3)
    assert len(torn.times()) == 3
    resumed = atoll.run(file, tmp_path / "part", resume=True)
    assert record(resumed) == record(whole)
    assert times(resumed) == times(whole)


def test_no_engine_and_no_stack_has_another_clock(tmp_path: Path) -> None:
    vector, loop = run(tmp_path / "vector", STRICT), run(tmp_path / "loop", STRICT, engine="loop")
    assert times(vector) == times(loop)
    files = [Experiment.parse({**GIVEN, "clock": STRICT, "seed": seed}) for seed in (0, 1)]
    stacked = run_together(files, [tmp_path / "s0", tmp_path / "s1"])
    assert times(stacked[0]) == times(vector)
    assert times(stacked[1]) != times(vector)


def test_over_selection_asks_more_and_takes_the_first(tmp_path: Path) -> None:
    over = run(tmp_path / "over", {**CLOCK, "over_selection": 1.5}, cohort={"name": "fixed", "size": 6})
    for line in times(over):
        arrived, status = np.array(line["arrived"]), np.array(line["status"])
        assert len(status) == 9
        assert (status == COUNTED).sum() == 6
        assert arrived[status == COUNTED].max() == line["end"] <= arrived[status == LATE].min()
    assert over.history[0]["cohort"]["how"]["size"] == 9


def test_too_few_reports_make_a_round_void(tmp_path: Path) -> None:
    void = run(tmp_path / "void", {**CLOCK, "deadline": 0.05, "min_reports": 12, "grace": 0.5})
    assert len(set(models(void))) == 1
    assert all(line["clock"]["void"] for line in void.history)
    assert [line["clock"]["end"] for line in void.history] == pytest.approx(0.55 * np.arange(1, 6))
    waited = run(tmp_path / "waited", {**CLOCK, "deadline": 0.05, "min_reports": 4, "grace": 1000.0})
    assert {line["clock"]["counted"] for line in waited.history} == {4}


def test_bytes_of_the_late_count_as_far_as_they_travelled(tmp_path: Path) -> None:
    late = run(tmp_path / "late", {**CLOCK, "deadline": 0.5})
    for entry, line in zip(late.history, times(late), strict=True):
        received, arrived = (np.array(line[name], float) <= line["end"] for name in ("received", "arrived"))
        assert entry["bytes"] == {"up": arrived.sum() * line["up"], "down": received.sum() * line["down"]}


def test_a_measured_pace_is_measured_once(tmp_path: Path) -> None:
    clock = {"seconds_per_step": "measured"}
    atoll.run({**GIVEN, "rounds": 2, "clock": clock}, tmp_path / "a")
    longer = atoll.run({**GIVEN, "rounds": 4, "clock": clock}, tmp_path / "a", resume=True)
    paces = {line["seconds_per_step"] for line in times(longer)}
    assert len(paces) == 1
    assert 0 < paces.pop() < 1


# Privacy.


def test_compressing_takes_its_time_between_training_and_sending(tmp_path: Path) -> None:
    packed = {"transform": [{"name": "top_k", "share": 0.1}]}
    without, declared, measured = (
        run(tmp_path / str(x), {**CLOCK, "seconds_to_compress": x}, **packed) for x in (0.0, 0.5, "measured")
    )
    assert models(without) == models(declared) == models(measured)
    first, before = times(declared)[0], times(without)[0]["sent"]
    later = [sent - earlier for sent, earlier in zip(first["sent"], before, strict=True)]
    assert later == pytest.approx(first["compressed"])
    assert min(later) > 0
    assert "compressed" not in times(without)[0]
    paces = {line["seconds_to_compress"] for line in times(measured)}
    assert len(paces) == 1
    assert 0 < paces.pop() < 5
    again = retime(make_clock(0.25), [Timeline.from_line(line) for line in times(declared)])
    assert [t.seconds_to_compress for t in again] == [0.25] * len(again)


def make_clock(compressing: float) -> Clock:
    return Clock.of(ClockTable(**CLOCK, seconds_to_compress=compressing), 0, 12)


def test_the_account_is_of_the_cohort_as_drawn(tmp_path: Path) -> None:
    cohort = {"cohort": {"name": "poisson", "size": 6}, "transform": PRIVATE}
    plain, late = run(tmp_path / "plain", **cohort), run(tmp_path / "late", STRICT, **cohort)
    promised = [r.info["privacy"]["client"] for r in (plain, late)]
    assert promised[0]["epsilon"] == promised[1]["epsilon"]
    assert "examples each client has" in json.dumps(promised[1]["assumed"])
    assert "examples each client has" not in json.dumps(promised[0].get("assumed", ""))


def test_the_denominator_of_noise_is_fixed_whoever_is_late() -> None:
    cohort = {"cohort": {"name": "fixed", "size": 6}, "transform": PRIVATE}
    late = set_up(Experiment.parse({**GIVEN, **cohort, "clock": STRICT}))
    over = set_up(Experiment.parse({**GIVEN, **cohort, "clock": {**CLOCK, "over_selection": 1.5}}))
    assert late.spec().expected == over.spec().expected == 6
    assert over.participation.size == 9


def test_noise_in_shares_and_a_clock_that_leaves_clients_out_are_refused() -> None:
    shares = [
        "equal_weights",
        {"name": "clip_l2", "max_norm": 0.5},
        {"name": "fixed_point", "step": 0.001},
        {"name": "discrete_gaussian", "noise_multiplier": 2.0},
    ]
    with pytest.raises(ConfigError, match=r"clock: can leave clients out .* Use gaussian_noise"):
        set_up(Experiment.parse({**GIVEN, "transform": shares, "clock": STRICT}))
    set_up(Experiment.parse({**GIVEN, "transform": shares, "clock": CLOCK}))


# What cannot be.


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"round": "gossip", "clock": {**CLOCK, "deadline": 5.0}},
            r"clock.deadline: is about a server .* use round.name = 'central'",
        ),
        ({"round": "epidemic", "clock": {**CLOCK, "dropout": 0.1}}, r"clock.dropout: is about a server"),
        ({"round": "all_reduce", "clock": {**CLOCK, "availability": 0.5}}, r"clock.availability: .* with all_reduce"),
        ({"task": {"model": "linear", "batch_norm": "recompute"}}, r"batch_norm: 'recompute' .* does not time"),
        (
            {"clock": {**CLOCK, "over_selection": 1.5}, "cohort": {"name": "poisson", "size": 5}},
            r"clock.over_selection: takes the first .* Use cohort.name = 'fixed'",
        ),
        ({"clock": {**CLOCK, "over_selection": 3.0}, "cohort": {"name": "fixed", "size": 6}}, r"asks 18 .* at most 2"),
        ({"clock": {**CLOCK, "min_reports": 13}}, r"clock.min_reports: 13 are more than the 12"),
        (
            {"clock": {**CLOCK, "min_reports": 9}, "cohort": {"name": "fixed", "size": 5}},
            r"clock.min_reports: 9 are more than the 5",
        ),
        (
            {"clock": {**CLOCK, "min_reports": 4}, "cohort": {"name": "fraction", "share": 0.25}},
            r"clock.min_reports: 4 are more than the 3",
        ),
        (
            {"clock": {**CLOCK, "min_reports": 5}, "cohort": {"name": "cyclic", "size": 4, "min_separation": 3}},
            r"clock.min_reports: 5 are more than the 4",
        ),
        (
            {"clock": {**CLOCK, "min_reports": 7, "over_selection": 1.5}, "cohort": {"name": "fixed", "size": 6}},
            r"clock.min_reports: 7 are more than the 6",
        ),
        ({"clock": {**CLOCK, "repeat": True}}, r"clock.repeat: .*Add clock.availability = \"reach.csv\", or leave"),
        ({"clock": {**CLOCK, "repeat": True, "availability": 0.5}}, r"clock.repeat: .* or leave repeat out"),
        ({"clock": {**CLOCK, "grace": 5.0}}, r"clock.grace: .* Add clock.deadline, or leave grace out"),
        ({"clock": {**CLOCK, "devices": {}}}, r"clock.devices: names no class. .* or leave it out"),
        (
            {"clock": {**CLOCK, "devices": {"phones": 1.5, "silo": -0.5}}},
            r"clock.devices: the share of silo must be above 0 \(got -0.5\)",
        ),
        ({"clock": {**CLOCK, "up_mbps": 0.0}}, r"clock.up_mbps: must be .* > 0 .* leave it out"),
        ({"clock": {**CLOCK, "latency_ms": -1}}, r"clock.latency_ms: must be .* >= 0"),
        ({"clock": {**CLOCK, "down_mbps": {"low": 0.0, "high": 1.0}}}, r"clock.down_mbps: must be above 0 for every"),
        ({"clock": {**CLOCK, "slowness": {"median": 1.0}}}, r"clock.slowness: is no distribution .* sigma"),
        ({"clock": {**CLOCK, "slowness": {"percentiles": [[50, 1.0], [20, 2.0]]}}}, r"both must rise"),
        ({"clock": {**CLOCK, "devices": "phoness"}}, r"clock.devices: there are no 'phoness'. Known: .*phones"),
        ({"clock": {**CLOCK, "devices": {"phones": 0.5}}}, r"clock.devices: the shares sum to 0.5"),
        ({"clock": {**CLOCK, "trace": "nowhere.csv"}}, r"clock.trace: there is no file nowhere.csv"),
        ({"clock": {"devices": "phones"}}, r"clock.seconds_per_step: is missing"),
        ({"clock": {**CLOCK, "loss": 1.0}}, r"clock.loss: must be below 1"),
    ],
)
def test_what_cannot_be_timed_is_refused_with_advice(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        set_up(Experiment.parse({**GIVEN, "clock": CLOCK, **changes}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("client,up_mbps\n0,1\n1,2\n", r"has no client 2"),
        ("client,up_mbps\n" + "".join(f"{i},1\n" for i in [*range(12), 99]), r"names client '99', whom nobody knows"),
        ("client,up_mbps\n" + "".join(f"{i},{i}\n" for i in range(12)), r"up_mbps of client 0 must be above 0"),
        ("client,up_mbps\n" + "".join(f"{i},x\n" for i in range(12)), r"other than finite numbers"),
        ("client,bandwidth\n0,1\n", r"has columns client, bandwidth. Use client and slowness"),
        ("client,up_mbps\n" + "".join(f"{i},1\n" for i in range(11)) + "11,1,5\n", r"line 13 has 3 fields, .* 2 names"),
        ("client,up_mbps\n0,1\n1\n", r"line 3 has 1 field, .* 2 names"),
        ("", r"is empty. Write a line of names"),
    ],
)
def test_a_trace_that_does_not_fit_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(text)
    clock = {**CLOCK, "trace": str(tmp_path / "trace.csv")}
    with pytest.raises(ConfigError, match=f"clock.trace.*: .*{words}"):
        set_up(Experiment.parse({**GIVEN, "clock": clock}))


@pytest.mark.parametrize("key", ["trace", "availability"])
@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("trace.csv", b"client,up_mbps\n0,1\xff\n", r"is not UTF-8. Save it as UTF-8"),
        ("trace.csv", b'client,up_mbps\n0,"' + b"1" * 140_000 + b"\n", r"is no CSV .*field"),
        ("trace.parquet", b"PAR1 and no more", r"is no Parquet file, or not all of one .* Write it again"),
    ],
)
def test_a_broken_trace_is_refused_with_its_name(name: str, data: bytes, words: str, key: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=f"(?s)clock.{key}: .*{name} {words}"):
        set_up(Experiment.parse({**GIVEN, "clock": {**CLOCK, key: str(tmp_path / name)}}))


def test_a_trace_that_a_spreadsheet_wrote_is_read(tmp_path: Path) -> None:
    """With a byte order mark."""
    (tmp_path / "trace.csv").write_text("client,slowness\n" + "".join(f"{i},1\n" for i in range(12)), "utf-8-sig")
    set_up(Experiment.parse({**GIVEN, "clock": {**CLOCK, "trace": str(tmp_path / "trace.csv")}}))


def test_a_trace_decides_whatever_its_format(tmp_path: Path) -> None:
    import duckdb

    (tmp_path / "t.csv").write_text("client,slowness\n" + "".join(f"{i},{i + 1}\n" for i in reversed(range(12))))
    duckdb.sql(f"copy (from '{tmp_path}/t.csv') to '{tmp_path}/t.parquet'")
    runs = [
        run(tmp_path / kind, {"seconds_per_step": 1.0, "trace": str(tmp_path / f"t.{kind}")})
        for kind in ("csv", "parquet")
    ]
    assert times(runs[0]) == times(runs[1])
    line = times(runs[0])[0]
    assert line["sent"] == [(i + 1) * steps for i, steps in enumerate(line["steps"])]


def test_an_availability_trace_that_lacks_clients_is_refused(tmp_path: Path) -> None:
    """They would never be reached, and nobody would see why."""
    (tmp_path / "there.csv").write_text("client,start,end\n0,0,3\n2,0,3\n")
    clock = {"seconds_per_step": 0.1, "availability": str(tmp_path / "there.csv")}
    with pytest.raises(
        ConfigError, match=r"no rows for 10 of the 12 clients \(client 1 among them\), .* Give every client"
    ):
        set_up(Experiment.parse({**GIVEN, "clock": clock}))


def test_a_run_beyond_its_availability_trace_is_refused_unless_it_repeats(tmp_path: Path) -> None:
    (tmp_path / "there.csv").write_text("client,start,end\n" + "".join(f"{i},0,3\n" for i in range(12)))
    clock = {"seconds_per_step": 0.1, "availability": str(tmp_path / "there.csv")}
    with pytest.raises(ConfigError, match=r"clock.availability: the trace ends after 3 s, and a round begins at"):
        run(tmp_path / "short", clock)
    again = run(tmp_path / "again", {**clock, "repeat": True})
    assert again.history[-1]["clock"]["end"] > 3
