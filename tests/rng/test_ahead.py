"""Numbers drawn for many keys in one call are, bit for bit, those that each key gives alone."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from atoll import rng
from atoll.rng import ahead, dp


@pytest.fixture(autouse=True)
def nothing_expected() -> Iterator[None]:
    ahead._expected.clear()
    ahead._places.clear()
    yield
    ahead._expected.clear()
    ahead._places.clear()


def keys(count: int, name: str = "ahead") -> Tensor:
    return torch.stack([rng.key(name, i) for i in range(count)])


def drawn(key: Tensor, n: int) -> Tensor:
    return dp.normal(key, (n,), dp.fast_bits)


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The keys and numbers of every call that draws for many."""
    calls: list[tuple[int, int]] = []

    def counted(keys: Tensor, n: int) -> Tensor:
        calls.append((len(keys), n))
        return normal_of_keys(keys, n)

    normal_of_keys = ahead.normal_of_keys
    monkeypatch.setattr(ahead, "normal_of_keys", counted)
    return calls


@pytest.mark.parametrize("n", [0, 1, 2, 7, 610, 611, 3001])
def test_a_draw_for_many_keys_has_the_bits_of_each_draw_alone(n: int) -> None:
    together = ahead.normal_of_keys(keys(5), n)
    alone = torch.stack([rng.normal_dp(key, (n,)) for key in keys(5)])
    assert together.dtype == alone.dtype
    assert torch.equal(together, alone)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([1, 610, 611])), max_size=12))
def test_whatever_is_asked_in_whatever_order_is_the_same_draw(asked: list[tuple[int, int]]) -> None:
    ahead.expect(keys(6))  # and not of the keys after them
    for i, n in asked:
        assert torch.equal(drawn(keys(10)[i], n), rng.normal_dp(keys(10)[i], (n,)))


def test_rounds_that_were_foretold_are_drawn_in_one_call(blocks: list[tuple[int, int]]) -> None:
    ahead.expect(keys(6))
    for key in keys(6):
        drawn(key, 610)
    assert blocks == [(6, 610)]


def test_a_resumed_run_draws_from_where_it_is(blocks: list[tuple[int, int]]) -> None:
    ahead.expect(keys(6))
    drawn(keys(6)[4], 610)
    assert blocks == [(2, 610)]


def test_runs_of_one_seed_share_a_draw_and_those_of_other_lengths_do_not_spoil_it(
    blocks: list[tuple[int, int]],
) -> None:
    for _ in range(2):
        ahead.expect(keys(6))
    for key in keys(6):
        assert len(drawn(key, 610)) == len(drawn(key, 610)) == len(drawn(key, 20)) + 590
    assert blocks == [(6, 610), (6, 20)]


def test_long_vectors_are_drawn_alone(blocks: list[tuple[int, int]]) -> None:
    ahead.expect(keys(6))
    long = ahead.SMALL // 2 + 1
    assert torch.equal(drawn(keys(6)[0], long), rng.normal_dp(keys(6)[0], (long,)))
    assert blocks == []
    drawn(keys(6)[0], ahead.SMALL // 3)
    assert blocks == [(3, ahead.SMALL // 3)]


def test_whoever_writes_in_a_draw_spoils_nobody_elses() -> None:
    ahead.expect(keys(2))
    first = drawn(keys(2)[0], 8)
    before = first.clone()
    first.zero_()
    assert torch.equal(drawn(keys(2)[0], 8), before)


def test_what_was_foretold_longest_ago_is_forgotten_and_drawn_alone(blocks: list[tuple[int, int]]) -> None:
    for run in range(ahead._BLOCKS + 1):
        ahead.expect(keys(3, f"run {run}"))
    assert len(ahead._places) == 3 * ahead._BLOCKS
    assert torch.equal(drawn(keys(3, "run 0")[1], 9), rng.normal_dp(keys(3, "run 0")[1], (9,)))
    assert blocks == []
    drawn(keys(3, "run 1")[1], 9)
    assert blocks == [(2, 9)]


def test_nothing_to_expect_is_nothing() -> None:
    ahead.expect(torch.zeros((0, 2), dtype=torch.int64))
    assert not ahead._places


def test_short_draws_use_one_thread_and_give_the_others_back(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    normal_of_words = ahead.normal_of_words

    def spied(words: Tensor, n: int) -> Tensor:
        threads.append(torch.get_num_threads())
        return normal_of_words(words, n)

    monkeypatch.setattr(ahead, "normal_of_words", spied)
    monkeypatch.setattr("atoll.rng.draws.normal_of_words", spied)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        ahead.expect(keys(2))
        drawn(keys(2)[0], 8)
        drawn(keys(3)[2], 8)
        drawn(keys(3)[2], ahead.SMALL)
        assert threads == [1, 1, 2]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("data", [0, 7, (1 << 40) + 3])
def test_keys_folded_together_are_those_folded_alone(data: int) -> None:
    together = rng.host.fold_all(keys(4), data)
    assert torch.equal(together, torch.stack([rng.fold(key, data) for key in keys(4)]))
