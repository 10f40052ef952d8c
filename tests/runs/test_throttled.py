"""Only the latest version of a file counts."""

from collections.abc import Mapping
from typing import Any

import pytest

from atoll.runs.throttled import Throttled


def test_the_first_is_written_at_once_then_one_a_second_and_the_last_when_flushed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, written = [100.0], list[Mapping[str, Any]]()
    monkeypatch.setattr("atoll.runs.throttled.time.monotonic", lambda: now[0])
    throttled = Throttled(written.append)
    for round in range(5):
        throttled({"round": round})
        now[0] += 0.4
    assert written == [{"round": 0}, {"round": 3}]
    throttled.flush()
    throttled.flush()
    assert written == [{"round": 0}, {"round": 3}, {"round": 4}]
