"""Where the time of a round goes: parts add up, and training is without what a protocol takes."""

import numpy as np
import pytest

from atoll.clock import Overhead, RoundParts, Timeline


def timeline(**changed: object) -> Timeline:
    """Two clients that count and one that is late; the server waits until 10."""
    given = {
        "start": 2.0,
        "end": 12.0,
        "ids": np.array([0, 1, 2]),
        "steps": np.array([1, 1, 1]),
        "received": np.array([3.0, 4.0, 5.0]),
        "sent": np.array([6.0, 8.0, 20.0]),
        "arrived": np.array([7.0, 12.0, 21.0]),
        "status": np.array([0, 0, 1], np.int8),
        "void": False,
        "down": 1.0,
        "up": 1.0,
        "seconds_per_step": 1.0,
    }
    return Timeline(**(given | changed))  # type: ignore[arg-type]


def test_parts_of_a_client_add_up_to_the_round() -> None:
    parts = RoundParts.of(timeline())
    assert parts.federated == 10.0
    assert (parts.receive, parts.train, parts.send, parts.idle) == (1.5, 3.5, 2.5, 2.5)
    assert parts.receive + parts.train + parts.encrypt + parts.send + parts.idle == parts.federated
    assert (parts.server_send, parts.server_idle) == (2.0, 8.0)


def test_a_protocol_takes_its_seconds_out_of_training() -> None:
    plain, secured = timeline(), timeline(encrypted=np.array([1.0, 2.0, 9.0]), overhead=Overhead())
    before, after = RoundParts.of(plain), RoundParts.of(secured)
    assert after.encrypt == 1.5
    assert after.train == before.train - 1.5


def test_overhead_is_the_share_of_time_without_training() -> None:
    assert RoundParts.of(timeline()).overhead == pytest.approx(0.65)


def test_a_round_in_which_nobody_counts_leaves_the_means_of_the_others() -> None:
    nobody = timeline(status=np.array([1, 1, 1], np.int8))
    parts = RoundParts.mean([timeline(), nobody])
    assert parts.train == 3.5
    assert np.isnan(RoundParts.of(nobody).train)
