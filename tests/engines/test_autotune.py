"""Choosing the fastest engine: engines whose speed we set, on a clock that only they move."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

import atoll
from atoll.algorithms.fedavg import FedAvg
from atoll.core import Job, Result
from atoll.engines import ENGINES, Loop, Threads, Vector
from atoll.engines import autotune as probe
from atoll.engines.autotune import Probe, measure
from atoll.engines.choice import Ground, candidates, make, taken, work_mark
from atoll.testing.harness import CPU, federation
from atoll.testing.problems import network

DAY = 86_400.0


@dataclass
class Time:
    """A clock that only work moves."""

    now: float = 1e4

    def __call__(self) -> float:
        return self.now


@dataclass
class Paced:
    """An engine that takes so long for a call and for each client's step; much longer while something disturbs it."""

    clock: Time
    step: float
    call: float = 0.0
    disturbed: Callable[[int], bool] = lambda _: False  # of the number of the call
    seen: list[int] = field(default_factory=list)  # clients of each call

    def run(self, job: Job) -> Result:
        took = self.call + self.step * int(job.cohort.steps.sum())
        self.clock.now += took * (100 if self.disturbed(len(self.seen)) else 1)
        self.seen.append(len(job.cohort))
        return Result(None, torch.zeros(0), torch.zeros(0), torch.zeros(0))


def work(clients: int = 64) -> Job:
    problem = network()
    made = federation(problem, FedAvg(problem.task, 0.1))
    return made.job([i % problem.partition.size for i in range(clients)])


def trio(clock: Time, vector: float = 1e-6, threads: float = 1e-3, loop: float = 2e-3) -> dict[str, Paced]:
    return {"vector": Paced(clock, vector, 1e-3), "threads": Paced(clock, threads), "loop": Paced(clock, loop)}


def asked(path: Path, clock: Time, load: float = 0.0) -> Probe:
    return Probe(path, clock, clock, clock, lambda: load)


def calls(engines: dict[str, Paced]) -> int:
    return sum(len(e.seen) for e in engines.values())


# ----------------------------------------------------------------------------------------------------------- measuring


def test_what_is_found_is_what_a_step_takes() -> None:
    clock = Time()
    found = measure(trio(clock, vector=1e-4), work(), clock, clock)
    assert found["threads"] == pytest.approx(1e-3)
    assert found["loop"] == pytest.approx(2e-3)
    assert 1e-4 < found["vector"] < 2e-4  # a call's own millisecond is shared by many clients


def test_a_stack_is_tried_on_many_clients_and_the_others_on_few() -> None:
    clock = Time()
    engines = trio(clock)
    measure(engines, work(), clock, clock)
    assert max(engines["vector"].seen) > 50
    assert max(engines["threads"].seen) == probe._FEW


def test_engines_are_timed_in_turns() -> None:
    clock, order = Time(), []

    class Told(Paced):
        def run(self, job: Job) -> Result:
            order.append(self.step)
            return super().run(job)

    engines = {n: Told(clock, s) for n, s in (("vector", 1e-3), ("threads", 2e-3), ("loop", 3e-3))}
    measure(engines, work(), clock, clock)
    assert order[-6:] == [1e-3, 2e-3, 3e-3] * 2


def test_a_machine_that_is_busy_for_most_of_the_time_does_not_decide() -> None:
    clock = Time()
    engines = {
        "vector": Paced(clock, 1e-5, 1e-4, disturbed=lambda n: n % 4 != 3),
        "threads": Paced(clock, 1e-3),
        "loop": Paced(clock, 2e-3),
    }
    found = measure(engines, work(), clock, clock)
    assert min(found, key=lambda n: found[n]) == "vector"


def test_what_is_hopeless_is_left_out_early() -> None:
    clock = Time()
    engines = trio(clock, threads=1e-4, loop=5e-3)
    engines["vector"].call = 0.01
    found = measure(engines, work(), clock, clock)
    assert len(engines["loop"].seen) < len(engines["threads"].seen)
    assert set(found) == {"vector", "threads", "loop"}


@pytest.mark.parametrize("pace", [1e-6, 1e-4, 1e-2])
def test_the_probe_is_short(pace: float) -> None:
    clock = Time()
    began = clock.now
    measure(trio(clock, pace, pace, 2 * pace), work(), clock, clock)
    assert clock.now - began < 2.5


def test_heavy_clients_are_few() -> None:
    clock = Time()
    began = clock.now
    engines = trio(clock, 0.3, 0.2, 0.3)
    measure(engines, work(), clock, clock)
    assert max(engines["vector"].seen) == 2
    assert clock.now - began < 8


def test_a_chunk_is_tried_where_it_makes_a_difference() -> None:
    clock = Time()
    names = ("vector", "vector by 16", "vector by 4", "threads", "loop")
    light = {n: Paced(clock, 1e-4 if n == "vector by 16" else 1e-3) for n in names}
    assert set(measure(light, work(), clock, clock)) == set(names)
    heavy = {n: Paced(clock, 0.02) for n in names}
    assert set(measure(heavy, work(), clock, clock)) == {"vector", "threads", "loop"}  # on three clients at a time


# --------------------------------------------------------------------------------------------------------- remembering


def test_a_clear_answer_is_measured_once(tmp_path: Path) -> None:
    clock, path = Time(), tmp_path / "engines.json"
    engines, job = trio(clock), work()
    first = asked(path, clock).fastest(engines, job, "a")
    before = calls(engines)
    again = asked(path, clock).fastest(engines, job, "a")
    assert again == first
    assert calls(engines) == before
    kept = json.loads(path.read_text())["a"]
    assert kept["best"] == "vector"
    assert kept["margin"] == pytest.approx(first.margin)
    assert abs(kept["at"] - clock.now) < 60
    asked(path, clock).fastest(engines, job, "b")  # another job
    assert calls(engines) > before


def test_a_close_answer_is_measured_again_until_it_stands(tmp_path: Path) -> None:
    clock, path, job = Time(), tmp_path / "engines.json", work()
    engines = trio(clock, vector=1e-3, threads=1.2e-3)
    counts = []
    for _ in range(5):
        asked(path, clock).fastest(engines, job, "a")
        counts.append(calls(engines))
    assert counts[0] < counts[1] < counts[2] == counts[3] == counts[4]


def test_measurements_are_joined_by_their_minimum(tmp_path: Path) -> None:
    clock, path, job = Time(), tmp_path / "engines.json", work()
    bad = asked(path, clock).fastest(trio(clock, vector=1e-3, threads=0.9e-3), job, "a")
    assert bad.best == "threads"
    good = asked(path, clock).fastest(trio(clock, vector=1e-5, threads=2e-3), job, "a")
    assert good.best == "vector"
    assert good.seconds["threads"] == pytest.approx(0.9e-3)
    assert good.tries == 2


def test_of_two_that_are_as_good_the_one_taken_before_stays(tmp_path: Path) -> None:
    """Runs of one experiment should not differ in their last bits for nothing."""
    clock, path, job = Time(), tmp_path / "engines.json", work()
    slow = Paced(clock, 1e-1)
    both = {"vector": Paced(clock, 1.1e-3), "threads": Paced(clock, 1e-3), "loop": slow}
    assert asked(path, clock).fastest(both, job, "a").best == "threads"
    both["vector"].step = 0.97e-3
    assert asked(path, clock).fastest(both, job, "a").best == "threads"
    both["vector"].step = 0.5e-3
    assert asked(path, clock).fastest(both, job, "a").best == "vector"


def test_nothing_is_slower_than_the_loop(tmp_path: Path) -> None:
    clock = Time()
    answer = asked(tmp_path / "x", clock).fastest(trio(clock, 3e-3, 3e-3, 2e-3), work(), "a")
    assert answer.best == "loop"


def test_what_was_found_under_load_is_measured_again_once_that_is_over(tmp_path: Path) -> None:
    clock, path, job = Time(), tmp_path / "engines.json", work()
    disturbed = trio(clock)
    disturbed["vector"].call, disturbed["vector"].disturbed = 0.01, lambda _: True
    for _ in range(3):
        assert asked(path, clock, load=3.0).fastest(disturbed, job, "a").best == "threads"
    before = calls(disturbed)
    asked(path, clock, load=3.0).fastest(disturbed, job, "a")
    assert calls(disturbed) == before  # it stands as long as there is load
    quiet = trio(clock)
    found = asked(path, clock).fastest(quiet, job, "a")
    assert found.best == "vector"
    assert not found.busy
    assert found.tries == 1  # figures of another kind are not joined


def test_under_load_processor_time_counts_and_workers_share_it(tmp_path: Path) -> None:
    wall, cpu = Time(), Time()

    @dataclass
    class Both(Paced):
        """Takes ten times as long by the wall clock, as something else has the cores."""

        workers: int = 1

        def run(self, job: Job) -> Result:
            before = self.clock.now
            result = super().run(job)
            wall.now += 10 * (self.clock.now - before)
            return result

        def count(self) -> int:
            return self.workers

    engines = {"vector": Both(cpu, 1.5e-3), "threads": Both(cpu, 2e-3, workers=2), "loop": Both(cpu, 2e-3)}
    before = torch.get_num_threads()
    found = Probe(tmp_path / "x", wall, cpu, wall, lambda: 5.0).fastest(engines, work(), "a")
    assert found.seconds == pytest.approx({"vector": 1.5e-3, "threads": 1e-3, "loop": 2e-3})
    assert torch.get_num_threads() == before


def test_an_old_answer_is_measured_anew(tmp_path: Path) -> None:
    clock, path, job = Time(), tmp_path / "engines.json", work()
    asked(path, clock).fastest(trio(clock), job, "a")
    clock.now += 29 * DAY
    engines = trio(clock, vector=5e-3)
    asked(path, clock).fastest(engines, job, "a")
    assert not calls(engines)
    clock.now += 2 * DAY
    assert asked(path, clock).fastest(engines, job, "a").best == "threads"


def test_an_answer_that_rounds_contradict_is_measured_anew(tmp_path: Path) -> None:
    clock, path, job = Time(), tmp_path / "engines.json", work()
    found = asked(path, clock).fastest(trio(clock), job, "a")
    asked(path, clock).confirm("a", "vector", 2 * found.seconds["vector"])  # near enough
    asked(path, clock).confirm("a", "threads", 9.0)  # another engine's
    asked(path, clock).confirm("b", "vector", 9.0)  # another job's
    engines = trio(clock, vector=5e-3)
    assert asked(path, clock).fastest(engines, job, "a") == found
    asked(path, clock).confirm("a", "vector", 4 * found.seconds["vector"])
    assert asked(path, clock).fastest(engines, job, "a").best == "threads"
    for _ in range(5):  # a difference that stays is in the nature of the job
        asked(path, clock).confirm("a", "threads", 9.0)
        asked(path, clock).fastest(engines, job, "a")
    before = calls(engines)
    asked(path, clock).confirm("a", "threads", 9.0)
    asked(path, clock).fastest(engines, job, "a")
    assert calls(engines) == before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 3}', '{"a": {"vector": 1.0, "threads": 2.0}}'])
def test_a_file_that_is_not_ours_is_as_if_there_were_none(tmp_path: Path, text: str) -> None:
    clock, path = Time(), tmp_path / "engines.json"
    path.write_text(text)
    assert asked(path, clock).fastest(trio(clock), work(), "a").best == "vector"
    assert json.loads(path.read_text())["a"]["best"] == "vector"


def test_a_home_that_cannot_be_written_costs_a_measurement_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    clock = Time()
    assert asked(tmp_path / "file" / "x.json", clock).fastest(trio(clock), work(), "a").best == "vector"


# ------------------------------------------------------------------------------------------------------- real engines


def ground() -> Ground:
    from atoll.data import Same

    return Ground(network().columns, Same(), CPU, False)


def test_auto_has_the_stack_its_chunks_the_threads_and_the_loop_to_choose_from() -> None:
    stacked = Vector(*(getattr(ground(), k) for k in ("columns", "decode", "device", "keyed")), chunk=100)
    found = candidates(ENGINES["auto"](), ground(), stacked, 64)
    assert list(found) == ["vector", "vector by 16", "vector by 4", "threads", "loop"]
    assert [taken(e) for e in found.values()] == list(found)
    assert isinstance(found["threads"], Threads)
    assert isinstance(found["loop"], Loop)
    assert list(candidates(ENGINES["auto"](), ground(), stacked, 10)) == ["vector", "vector by 4", "threads", "loop"]
    assert list(candidates(ENGINES["auto"](chunk=8), ground(), stacked, 64)) == ["vector", "threads", "loop"]


@pytest.mark.parametrize("name", ["vector", "vector by 4", "threads", "loop"])
def test_the_engine_that_was_found_is_made(name: str, tmp_path: Path) -> None:
    choice, job, path = ENGINES["auto"](), work(20), tmp_path / "engines.json"
    mark = work_mark(choice, ground(), job)
    kept = {"best": name, "seconds": {name: 1e-3, "other": 1.0}, "at": 5.0}
    path.write_text(json.dumps({mark: kept}))
    made = make(choice, ground(), 1000, job, probe=Probe(path, now=lambda: 6.0, load=lambda: 0.0))
    assert taken(made) == name
    assert made.reason == f"measured: {name} 1 ms, other 1e+03 ms (a client's step)"


def test_the_mark_tells_jobs_apart() -> None:
    choice, job = ENGINES["auto"](), work(20)
    same = work_mark(choice, ground(), work(20))
    assert work_mark(choice, ground(), job) == same
    others = {
        work_mark(choice, ground(), work(40)),
        work_mark(ENGINES["auto"](workers=1), ground(), job),
        work_mark(ENGINES["auto"](chunk=3), ground(), job),
        work_mark(choice, ground(), replace(job, sent={"params": {"w": torch.zeros(3)}})),
    }
    assert len(others | {same}) == 5


def test_a_run_tells_the_probe_how_long_its_rounds_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    monkeypatch.setattr(Probe, "confirm", lambda self, *what: told.append(what))
    monkeypatch.setattr(Probe, "fastest", lambda self, engines, job, mark: probe.Answer("loop", {"loop": 1.0}, 0.0))
    given = {
        "rounds": 3,
        "data": "digits",
        "partition": {"name": "iid", "clients": 50},
        "cohort": {"name": "fixed", "size": 2},
        "task": {"model": "linear"},
        "algorithm": {"name": "fedavg", "lr": 0.1},
        "evaluate": {"every": 3, "clients": 0},
    }
    run = atoll.run(given, tmp_path / "run")
    assert run.info["engine"]["name"] == "loop"
    ((_, name, seconds),) = told
    assert name == "loop"
    assert 0 < seconds < min(e["seconds"]["train"] for e in run.history)  # several steps in a round
    atoll.run({**given, "engine": "loop"}, tmp_path / "chosen")  # nothing to confirm
    assert len(told) == 1
