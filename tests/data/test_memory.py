"""Data that is made from numbers in a file: its size is estimated first, and refused with what would fit."""

import re
import sys
import time

import numpy as np
import pytest

from atoll.data import DATA, memory
from atoll.data.sources.synthetic import estimated_bytes
from atoll.errors import DataError

GIB = 1 << 30


@pytest.fixture
def sixteen_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 16 * GIB // 4096}.__getitem__)


def test_100_000_users_are_refused_at_once_with_what_would_fit(sixteen_gib: None) -> None:
    before = time.perf_counter()
    with pytest.raises(DataError) as e:
        DATA["synthetic"](users=100_000)
    assert time.perf_counter() - before < 5
    said = str(e.value)
    assert said.startswith(
        "data.users: 100,000 users hold 44,635,075 examples of 60 numbers, about 12.7 GiB; a quarter"
    )
    assert "is 4.0 GiB. Set data.users = 31415, or data.largest = 200 to cap the examples of each." in said


def test_what_is_advised_would_fit(sixteen_gib: None) -> None:
    with pytest.raises(DataError) as e:
        DATA["synthetic"](users=100_000)
    cap = int(re.findall(r"largest = (\d+)", str(e.value))[0])
    sizes = np.full(100_000, cap)  # nobody holds more
    assert estimated_bytes(sizes, len(sizes), 60, 10) > 4 * GIB > estimated_bytes(sizes // 2, len(sizes), 60, 10)


@pytest.mark.parametrize("options", [{"users": 10**9}, {"dimensions": 10**9}, {"classes": 10**9}])
def test_whatever_is_too_large_is_refused(options: dict[str, int], sixteen_gib: None) -> None:
    with pytest.raises(DataError, match=r"about .* GiB; a quarter of this machine's memory is 4\.0 GiB\. Set "):
        DATA["synthetic"](**options)
    with pytest.raises(DataError, match=r"data\.points: 4,000,000,000 points"):
        DATA["fcube"](points=10**9)


def test_the_estimate_is_no_less_than_what_is_held() -> None:
    made = DATA["synthetic"](users=300, seed=1)
    held = sum(column.nbytes for part in (made.train, made.test) for column in part.values())
    rows = len(made.train["y"]) + len(made.test["y"])
    assert held < estimated_bytes(np.array([rows]), 1, 60, 10)


def test_a_machine_that_does_not_tell_has_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr("os.sysconf", absent)
    assert memory.machine_memory() > 1 << 60


def test_logits_that_are_made_in_parts_give_the_same_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = DATA["synthetic"](users=3, classes=40)
    monkeypatch.setattr(sys.modules["atoll.data.sources.synthetic"], "_LOGITS", 1000)  # 25 rows of many hundreds
    assert DATA["synthetic"](users=3, classes=40).digest() == whole.digest()
    assert int(whole.keys["user"].bincount().max()) > 100


def test_the_logits_of_the_largest_user_are_counted() -> None:
    sizes = np.array([20_000])
    assert estimated_bytes(sizes, 1, 60, 1000) - estimated_bytes(sizes, 1, 60, 2) > 20_000 * 900 * 8
