"""Who is at work and who comes back first, against a heap of events; and what holds whatever the numbers are."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.clock import (
    COUNTED,
    DROPPED,
    LATE,
    Barrier,
    Clock,
    ConstantQuantity,
    Devices,
    Flights,
    Flow,
    FlowStep,
    Intervals,
    Messages,
    Patience,
    RoundParts,
    Timeline,
    UniformQuantity,
)
from atoll.clock.device_classes import IDEAL
from tests.support.event_heap import EventHeap

MESSAGES = Messages(0.0, 0.0, 1.0)


def devices(spread: bool) -> Devices:
    slowness = UniformQuantity(0.5, 5.0) if spread else ConstantQuantity(1.0)
    return Devices(((1.0, {**IDEAL, "slowness": slowness}),))


def flow(clock: Clock, barrier: Barrier, steps: int = 1) -> Flow:
    return Flow(clock, barrier, lambda ids: np.full(len(ids), steps))


def made(way: Flow, places: int, population: int, steps: int) -> list[FlowStep]:
    now, flights, found = 0.0, Flights.nobody(places), []
    for version in range(steps):
        found.append(way.step(version, now, flights, np.arange(population), MESSAGES))
        now, flights = found[-1].end, found[-1].flights
    return found


@settings(deadline=None, max_examples=25)
@given(
    st.integers(1, 12), st.integers(1, 9), st.integers(1, 9) | st.none(), st.floats(0.3, 20.0) | st.none(),
    st.integers(0, 4) | st.none(), st.sampled_from([0.0, 0.3]), st.sampled_from([1.0, 0.6]), st.booleans(),
    st.sampled_from([np.inf, 2.5]), st.integers(0, 5),
)  # fmt: skip
def test_steps_are_those_of_a_heap_of_events(
    population: int, places: int, buffer: int | None, window: float | None, stale: int | None, dropout: float,
    availability: float, spread: bool, deadline: float, seed: int,
) -> None:  # fmt: skip
    buffer = buffer or (None if window else 1)
    clock = Clock(
        devices(spread), 1.0, availability=availability, dropout=dropout, seed=seed, patience=Patience(deadline)
    )
    way = flow(clock, Barrier(buffer, window or np.inf, stale))
    empty = np.zeros(0)
    oracle = EventHeap(
        clock, population, places, buffer or np.inf, np.ones(population), lambda c, w: w, lambda w, came: w, empty,
        window or np.inf, np.inf if stale is None else stale,
    )  # fmt: skip
    asked = 0
    for version, step in enumerate(made(way, places, population, 12)):
        expected = oracle.step()
        assert list(zip(step.reports.id.tolist(), (version - step.reports.version).tolist(), strict=True)) == expected
        assert step.end == pytest.approx(oracle.now, abs=1e-12)
        # What holds whatever the numbers are.
        at_work = step.flights.id[step.flights.busy]
        assert len(set(at_work.tolist())) == len(at_work) <= places
        assert len(set(step.reports.id.tolist())) == len(step.reports.id) <= (buffer or population)
        assert not set(at_work.tolist()) & set(step.reports.id[step.reports.due == step.end].tolist())
        assert stale is None or bool((version - step.reports.version <= stale).all())
        assert set(step.reports.status.tolist()) <= {COUNTED}
        assert set(step.others.status.tolist()) <= {DROPPED, LATE}
        asked += len(step.reports.id) + len(step.others.id)
    began = sum(1 for _ in at_work) + asked
    assert began <= 12 * population


def test_where_all_are_equally_fast_a_buffer_of_all_places_is_a_synchronous_round() -> None:
    for version, step in enumerate(made(flow(Clock(devices(False), 1.0), Barrier(4)), 4, 4, 5)):
        assert step.reports.id.tolist() == [0, 1, 2, 3]
        assert step.reports.version.tolist() == [version] * 4
        assert (step.start, step.end) == (version, version + 1)


def test_a_window_of_inf_is_a_barrier_by_count_and_one_of_no_count_looks_at_the_clock_alone() -> None:
    clock = Clock(devices(True), 1.0, dropout=0.2)
    counted, both = (made(flow(clock, Barrier(3, window)), 5, 20, 30) for window in (np.inf, 1e9))
    assert [s.reports.id.tolist() for s in counted] == [s.reports.id.tolist() for s in both]
    by_clock = made(flow(clock, Barrier(None, 2.0)), 5, 20, 30)
    assert [s.end for s in by_clock] == [2.0 * (i + 1) for i in range(30)]
    assert len({len(s.reports.id) for s in by_clock}) > 1


def test_a_window_as_long_as_equally_fast_clients_take_is_a_synchronous_round() -> None:
    steps = made(flow(Clock(devices(False), 1.0), Barrier(None, 1.0)), 4, 4, 5)
    assert all(s.reports.id.tolist() == [0, 1, 2, 3] and (s.reports.version == i).all() for i, s in enumerate(steps))


def test_a_client_that_is_lost_frees_its_place_at_the_moment_it_is_lost() -> None:
    clock = Clock(devices(False), 10.0, dropout=1.0, dropout_moment="download")
    step = made(flow(clock, Barrier(2)), 1, 6, 1)[0]
    assert (step.others.due == 0.0).all()  # all six are asked one after the other, at once
    assert (len(step.others.id), step.end) == (6, 0.0)


def test_a_server_that_nobody_can_be_reached_by_waits_for_the_first_interval_of_its_trace() -> None:
    trace = Intervals(np.array([0, 1]), np.array([3.0, 5.0]), np.array([9.0, 9.0]), 9.0, True)
    step = made(flow(Clock(devices(False), 1.0, availability=trace), Barrier(2)), 2, 2, 1)[0]
    assert step.reports.began.tolist() == [3.0, 5.0]
    assert step.end == 6.0
    assert trace.next_start(np.array([0, 1]), 6.0) == 12.0
    assert trace.next_start(np.array([7]), 6.0) == np.inf


def test_a_model_that_is_too_old_is_given_up_when_the_server_makes_its_step() -> None:
    slow = Devices(trace={"slowness": np.array([1.0, 1.0, 50.0])}, classes=((1.0, IDEAL),))
    steps = made(flow(Clock(slow, 1.0), Barrier(2, max_staleness=2)), 3, 3, 5)
    late = [s.others.id[s.others.status == LATE].tolist() for s in steps]
    assert late[:4] == [[], [], [], [2]]


def test_a_timeline_says_when_each_client_was_sent_its_model_and_is_read_as_it_was_written(tmp_path: Path) -> None:
    steps = made(flow(Clock(devices(True), 1.0, dropout=0.3), Barrier(2)), 4, 9, 6)
    timeline = steps[-1].timeline(MESSAGES)
    again = Timeline.from_line(timeline.as_line(6))
    assert again.began is not None
    assert again.began.tolist() == timeline.begins.tolist()
    parts = RoundParts.mean([s.timeline(MESSAGES) for s in steps])
    assert parts.train == pytest.approx(np.mean([s.reports.due - s.reports.began for s in steps]))
    assert np.isnan(parts.server_send)
