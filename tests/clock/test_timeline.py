"""A round in virtual time: identities, an oracle that plays it event by event, and what no draw may change."""

import heapq
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.clock import (
    ABSENT,
    COUNTED,
    DROPPED,
    LATE,
    Clock,
    ClockTable,
    ConstantQuantity,
    Devices,
    Intervals,
    Patience,
    Timeline,
    device_classes,
    transfer_seconds,
)
from atoll.clock.device_classes import IDEAL

IDS = np.arange(12)
STEPS = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8])


def clock(seed: int = 0, wanted: int | None = None, **options: object) -> Clock:
    table = {"seconds_per_step": 0.5, "devices": "phones", **options}
    return Clock.of(ClockTable.model_validate(table), seed, 1000, wanted=wanted)


def timed(
    clock: Clock, start: float = 0.0, ids: np.ndarray = IDS, steps: np.ndarray = STEPS, number: int = 0
) -> Timeline:
    return clock.timeline(number, ids, steps, 2e5, 1e5, start)


# Identities.


def test_infinite_bandwidth_and_no_compute_is_no_time() -> None:
    line = timed(Clock(), start=7.0)
    assert line.end == 7.0
    assert line.counted.all()
    assert (line.received == 7).all()
    assert (line.sent == 7).all()
    assert (line.arrived == 7).all()


def test_one_message_is_its_latency_and_its_bytes_over_the_bandwidth() -> None:
    columns = {
        **IDEAL,
        "up_mbps": ConstantQuantity(8.0),
        "down_mbps": ConstantQuantity(16.0),
        "latency_ms": ConstantQuantity(50.0),
    }
    plain = Clock(Devices(((1.0, columns),)), 0.5, slow_start=False)
    line = timed(plain)
    frame = 1514 / 1448
    assert line.received == pytest.approx(0.05 + 2e5 / 2e6 * frame)
    assert line.sent - line.received == pytest.approx(STEPS * 0.5)
    assert line.arrived - line.sent == pytest.approx(0.05 + 1e5 / 1e6 * frame)
    assert line.end == line.arrived.max()


def test_loss_sends_a_share_again() -> None:
    rate, none, half = np.array([1e6]), np.zeros(1), np.array([0.5])
    once = transfer_seconds(1e6, rate, none, none, False)
    assert transfer_seconds(1e6, rate, none, half, False) == pytest.approx(2 * once)


def test_slow_start_costs_nothing_without_latency_or_for_ten_packets() -> None:
    rate, none, far = np.array([1e6]), np.zeros(1), np.array([0.1])
    assert transfer_seconds(1e6, rate, none, none, True) == transfer_seconds(1e6, rate, none, none, False)
    assert transfer_seconds(14480, rate, far, none, True) == transfer_seconds(14480, rate, far, none, False)
    assert transfer_seconds(14481, rate, far, none, True) > transfer_seconds(14481, rate, far, none, False)


def test_a_long_message_fills_the_link_after_the_ramp() -> None:
    """10 packets, 20, 40 ... each in one round trip until they take longer than that: Kurose and Ross, section 3.7."""
    rate, latency = 2e6, 0.05
    goodput, window, waited = rate * 1448 / 1514, 14480.0, 0.0
    while window / goodput < 2 * latency:
        waited += 2 * latency - window / goodput
        window *= 2
    seconds = transfer_seconds(1e9, np.array([rate]), np.array([latency]), np.zeros(1), True)
    assert seconds == pytest.approx(latency + 1e9 / goodput + waited)


def test_nobody_asked_is_no_time_and_not_void() -> None:
    line = timed(clock(deadline=5.0, min_reports=3), start=2.0, ids=IDS[:0], steps=STEPS[:0])
    assert (line.end, line.void, len(line.counted)) == (2.0, False, 0)


# Against an oracle, event by event.


def played(line: Timeline, lost: np.ndarray, patience: Patience, rank: np.ndarray) -> tuple[float, set[int], bool]:
    """A server that hears of reports and losses one after the other. `lost`: inf for clients that are not."""
    events = [(t, r, "report", i) for i, (t, r) in enumerate(zip(line.arrived, rank, strict=True)) if math.isfinite(t)]
    events += [(t, 2.0, "lost", i) for i, t in enumerate(lost) if math.isfinite(t)]
    limit = line.start + patience.deadline
    events += [(limit, 3.0, "deadline", -1), (limit + patience.grace, 4.0, "grace", -1)]
    heapq.heapify(events)
    reports: set[int] = set()
    silent, passed, now = set(range(len(line.ids))), False, line.start
    while silent:
        now, _, what, who = heapq.heappop(events)
        if what == "report":
            reports.add(who)
        silent -= {who}
        passed = passed or what in ("deadline", "grace")
        enough = len(reports) >= patience.min_reports
        if len(reports) == patience.wanted or (passed and enough) or what == "grace":
            break
    void = len(reports) < patience.min_reports
    return now, set() if void else reports, void


@given(
    seed=st.integers(0, 10**6),
    deadline=st.sampled_from([None, 3.0, 10.0, 40.0]),
    wanted=st.sampled_from([None, 1, 5, 11]),
    min_reports=st.integers(1, 8),
    grace=st.sampled_from([0.0, 5.0, 100.0]),
    dropout=st.sampled_from([0.0, 0.3, 1.0]),
    moment=st.sampled_from(["download", "training", "upload", "any"]),
    availability=st.sampled_from([1.0, 0.6]),
)
def test_the_server_does_what_it_would_do_event_by_event(
    seed: int,
    deadline: float | None,
    wanted: int | None,
    min_reports: int,
    grace: float,
    dropout: float,
    moment: str,
    availability: float,
) -> None:
    options = {"dropout": dropout, "dropout_moment": moment, "availability": availability}
    options |= {} if deadline is None else {"deadline": deadline}
    whole = clock(seed, wanted, min_reports=min_reports, grace=grace, **options)
    line = timed(whole, start=1.5)
    times = timed(clock(seed), start=1.5)
    lost = whole._lost(0, IDS, 1.5, (times.received, times.sent, times.arrived))
    gone = np.where(lost.phase < 3, lost.at, np.inf)
    end, counted, void = played(line, gone, whole.patience, whole._draw(0, IDS, 4))
    assert line.end == end
    assert set(np.flatnonzero(line.counted)) == counted
    assert line.void == void


@given(seed=st.integers(0, 10**6), dropout=st.sampled_from([0.0, 0.5]), start=st.floats(0, 1e6))
def test_timestamps_are_in_order_and_what_was_lost_never_comes(seed: int, dropout: float, start: float) -> None:
    line = timed(clock(seed, dropout=dropout, availability=0.9, deadline=20.0), start)
    assert (line.received >= start).all()
    assert (line.sent >= line.received).all()
    assert (line.arrived >= line.sent).all()
    assert start <= line.end <= start + 20.0
    assert np.isinf(line.arrived[(line.status == DROPPED) | (line.status == ABSENT)]).all()
    assert np.isinf(line.received[line.status == ABSENT]).all()
    assert (line.arrived[line.status == COUNTED] <= line.end).all()
    if not line.void:
        assert (line.arrived[line.status == LATE] > line.end).all()


@given(seed=st.integers(0, 1000), order=st.permutations(range(12)), cut=st.integers(0, 12))
def test_neither_order_nor_company_moves_a_client(seed: int, order: list[int], cut: int) -> None:
    unsteady = clock(seed, dropout=0.4, availability=0.8)
    whole = timed(unsteady)
    turned = timed(unsteady, ids=IDS[order], steps=STEPS[order])
    assert (turned.arrived == whole.arrived[order]).all()
    assert (turned.status == whole.status[order]).all()
    assert turned.end == whole.end
    part = timed(unsteady, ids=IDS[:cut], steps=STEPS[:cut])
    assert (part.arrived == whole.arrived[:cut]).all()


def test_rounds_draw_anew_and_devices_stay() -> None:
    unsteady = clock(dropout=0.5)
    statuses = {timed(unsteady, number=n).status.tobytes() for n in range(5)}
    assert len(statuses) == 5
    assert (timed(clock(), number=0).arrived == timed(clock(), number=1).arrived).all()


def test_dropouts_come_as_often_as_asked_and_when() -> None:
    ids = np.arange(20_000)
    line = timed(clock(dropout=0.3), ids=ids, steps=np.ones_like(ids))
    gone = line.status == DROPPED
    assert gone.mean() == pytest.approx(0.3, abs=0.01)
    received, sent = np.isfinite(line.received[gone]), np.isfinite(line.sent[gone])
    assert [(~received).mean(), (received & ~sent).mean(), sent.mean()] == pytest.approx([1 / 3] * 3, abs=0.02)


def test_of_many_reports_at_once_the_first_are_not_always_the_same() -> None:
    same = Clock(patience=Patience(wanted=4))
    chosen = [frozenset(np.flatnonzero(timed(same, number=n).counted)) for n in range(30)]
    assert {len(c) for c in chosen} == {4}
    assert len(set(chosen)) > 20


# Availability.


def test_a_client_is_there_in_its_intervals_only() -> None:
    there = Intervals(np.array([0, 1]), np.array([0.0, 10.0]), np.array([5.0, 20.0]), 20.0, False)
    slow = Clock(Devices(), 1.0, availability=there)
    first = timed(slow, 0.0, np.arange(3), np.array([5, 1, 1]))
    assert first.status.tolist() == [COUNTED, ABSENT, ABSENT]
    again = timed(slow, 0.0, np.arange(3), np.array([6, 1, 1]))
    assert again.status.tolist() == [DROPPED, ABSENT, ABSENT]
    assert again.end == 5.0  # the server hears of it then


def test_a_trace_that_repeats_goes_on_over_its_end() -> None:
    there = Intervals(np.array([0, 0]), np.array([0.0, 8.0]), np.array([3.0, 10.0]), 10.0, True)
    assert there.until(np.array([0]), 9.0).tolist() == [13.0]
    assert there.until(np.array([0]), 25.0).tolist() == [-np.inf]
    assert there.until(np.array([0]), 21.0).tolist() == [23.0]
    late = Intervals(np.array([0, 0]), np.array([1.0, 8.0]), np.array([3.0, 10.0]), 10.0, True)
    assert late.until(np.array([0]), 9.0).tolist() == [10.0]
    always = Intervals(np.array([0]), np.array([0.0]), np.array([10.0]), 10.0, True)
    assert always.until(np.array([0]), 9.0).tolist() == [np.inf]


# What is written.


def test_a_line_reads_back_as_the_timeline() -> None:
    line = timed(clock(dropout=0.5, deadline=9.0))
    again = Timeline.from_line(line.as_line(1))
    for name, value in vars(line).items():
        assert np.array_equal(value, getattr(again, name)), name


def test_every_device_class_has_a_source_and_times_a_round() -> None:
    for name, one in device_classes().items():
        assert one.source
        assert one.about
        line = timed(clock(devices=name))
        assert 0 < line.end < 1e4


def test_shares_of_classes_are_kept() -> None:
    mixed = Devices.of(ClockTable(seconds_per_step=1.0, devices={"silo": 0.25, "fedeval": 0.75}), 3, 10**6)
    up = mixed.profile(np.arange(20_000)).up
    assert (up == 1000e6 / 8).mean() == pytest.approx(0.25, abs=0.01)
