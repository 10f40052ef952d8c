"""A protocol around the update: its bytes, its round trips and its seconds in a round's timestamps."""

import json

import numpy as np
import pytest

from atoll.clock import Clock, ClockTable, Overhead, RoundParts, Timeline

IDS, STEPS = np.arange(3), np.array([1, 2, 3])


def clock(**options: float) -> Clock:
    return Clock.of(ClockTable(seconds_per_step=0.1, **options), seed=0, population=3)  # type: ignore[arg-type]


def timeline(overhead: Overhead | None, **options: float) -> Timeline:
    return clock(**options).timeline(0, IDS, STEPS, 1e6, 1e6, 5.0, overhead=overhead)


def test_a_protocol_that_takes_nothing_changes_no_timestamp() -> None:
    plain, nothing = timeline(None, latency_ms=10.0), timeline(Overhead(), latency_ms=10.0)
    for name in ("received", "sent", "arrived", "end"):
        assert np.array_equal(getattr(plain, name), getattr(nothing, name))
    assert plain.as_line(1).keys() < nothing.as_line(1).keys()


def test_seconds_of_a_client_are_as_slow_as_it_is_and_the_servers_are_at_the_end() -> None:
    plain = timeline(None, slowness=3.0, latency_ms=50.0)
    slow = timeline(Overhead(client_seconds=2.0, server_seconds=7.0, round_trips=3), slowness=3.0, latency_ms=50.0)
    assert slow.sent - plain.sent == pytest.approx(3 * 2.0 + 2 * 3 * 0.05)
    assert slow.encrypted == pytest.approx(3 * 2.0 + 2 * 3 * 0.05)
    assert slow.end - plain.end == pytest.approx(6.3 + 7.0)


def test_all_wait_for_whoever_has_a_role_and_are_idle() -> None:
    """What two of a hundred decrypt is not a hundredth of it for each: the round ends when they have."""
    plain = timeline(Overhead(client_seconds=1.0), slowness=3.0, latency_ms=50.0)
    role = timeline(Overhead(client_seconds=1.0, role_seconds=4.0), slowness=3.0, latency_ms=50.0)
    assert role.end - plain.end == pytest.approx(3 * 4.0 + 2 * 0.05)  # the request, and the answer
    assert np.array_equal(role.arrived, plain.arrived)
    assert RoundParts.of(role).idle - RoundParts.of(plain).idle == pytest.approx(12.1)
    assert RoundParts.of(role).encrypt == RoundParts.of(plain).encrypt


def test_a_roles_bytes_are_on_the_way_both_times() -> None:
    links = {"up_mbps": 10.0, "down_mbps": 30.0, "latency_ms": 0.0, "slow_start": False}
    plain, role = (timeline(Overhead(role_seconds=1e-9, role_up=x, role_down=3 * x), **links) for x in (0.0, 1e6))
    assert role.end - plain.end == pytest.approx(2 * 0.8 * 1514 / 1448)


def test_a_void_round_waits_for_no_role() -> None:
    few = clock(min_reports=4)
    ends = [few.timeline(0, IDS, STEPS, 1.0, 1.0, 0.0, overhead=Overhead(role_seconds=x)).end for x in (0.0, 9.0)]
    assert ends[0] == ends[1]


def test_a_line_of_an_earlier_version_reads_back() -> None:
    line = timeline(Overhead(1.0, 2.0, 3.0, 4.0, 5), latency_ms=10.0).as_line(1)
    line["overhead"] = line["overhead"][:5]
    assert Timeline.from_line(line).overhead == Overhead(1.0, 2.0, 3.0, 4.0, 5)


def test_a_line_of_the_file_reads_back() -> None:
    made = timeline(Overhead(1.0, 2.0, 3.0, 4.0, 5, 6.0, 7.0, 8.0), latency_ms=10.0)
    read = Timeline.from_line(json.loads(json.dumps(made.as_line(1))))
    assert read.overhead == made.overhead
    assert np.array_equal(read.encrypted, made.encrypted)
    assert Timeline.from_line(timeline(None).as_line(1)).overhead is None
