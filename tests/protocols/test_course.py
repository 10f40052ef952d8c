"""The course of a protocol: how many answers, with which the vector comes, and who is lost where."""

from dataclasses import dataclass
from math import ceil

import numpy as np
import pytest
import torch

from atoll import rng
from atoll.errors import ProtocolError
from atoll.protocols import NEVER, PROTOCOLS, Course, SecureAggregation, rehearse, run_protocol
from tests.support.marks import slow_among
from tests.support.summed_in_clear import SummedInClear

IDS = np.arange(2000)


@dataclass(frozen=True)
class ForMany(SummedInClear):
    """Does not run among few."""

    def least(self, clients: int) -> int:
        return max(20, ceil(0.5 * clients))


@pytest.mark.parametrize(
    ("course", "least", "dropout"), [(Course(4, 2), 5, 0.1), (Course(3, 2, (1, 2)), 6, 0.1), (Course(4, 2), 2, 0.9)]
)
def test_the_probability_of_a_void_round_is_how_often_one_is(course: Course, least: int, dropout: float) -> None:
    void = 0
    for number in range(2000):
        lost_at = course.lost_at(5, number, np.arange(6), dropout)
        void += int((lost_at == NEVER).sum()) < least or course.ends(lost_at)
    assert course.void_probability(6, least, dropout) == pytest.approx(void / 2000, abs=0.04)


def test_no_round_is_void_where_nobody_is_lost_and_all_are_where_everybody_is() -> None:
    assert Course(3, 2, (1, 2)).void_probability(6, 6, 0.0) == 0.0
    assert Course(4, 2).void_probability(6, 1, 1.0) == 1.0
    assert Course(4, 2).void_probability(6, 5, 0.1) == pytest.approx(1 - 0.9**6 - 6 * 0.1 * 0.9**5)


def test_a_rehearsal_finds_the_step_of_the_vector() -> None:
    assert rehearse(SummedInClear()) == Course(3, 1)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_rehearsal_finds_what_a_protocol_says_of_itself(name: str) -> None:
    protocol: SecureAggregation = PROTOCOLS[name](bits=16, insecure_seed=False)
    course, answers = rehearse(protocol), protocol.answers()
    if answers:
        assert course.steps == len(answers)
    if answers and protocol.vector_kind and not course.fatal:
        assert course.vector_step == answers.index(protocol.vector_kind)


def test_where_nobody_may_be_lost_every_loss_ends_it() -> None:
    course = rehearse(SummedInClear(threshold=0.999))
    assert course.fatal == (0, 1, 2)
    assert course.ends(np.array([NEVER, 2]))
    assert not course.ends(np.array([NEVER, NEVER]))


def test_a_protocol_that_is_not_for_few_is_refused() -> None:
    with pytest.raises(ProtocolError, match="does not run among 3 to 12 clients"):
        rehearse(ForMany())


def test_losses_are_as_frequent_as_asked_and_at_every_step_alike() -> None:
    lost_at = Course(4, 2).lost_at(7, 3, IDS, 0.3)
    lost = lost_at[lost_at != NEVER]
    assert len(lost) / len(IDS) == pytest.approx(0.3, abs=0.04)
    assert np.bincount(lost, minlength=4) / len(lost) == pytest.approx(0.25, abs=0.06)
    assert Course(4, 2).in_sum(np.array([0, 2, 3, NEVER])).tolist() == [False, False, True, True]
    assert (Course(4, 2).lost_at(7, 3, IDS, 0.0) == NEVER).all()


def test_who_is_lost_is_drawn_from_seed_round_and_client_alone() -> None:
    course = Course(4, 2)
    everybody = course.lost_at(7, 3, IDS, 0.3)
    some = np.array([1999, 5, 40])
    assert course.lost_at(7, 3, some, 0.3).tolist() == everybody[some].tolist()
    assert course.lost_at(7, 4, IDS, 0.3).tolist() != everybody.tolist()
    assert course.lost_at(8, 3, IDS, 0.3).tolist() != everybody.tolist()


@pytest.mark.parametrize("name", slow_among(PROTOCOLS, "ckks"))
def test_a_round_that_is_not_void_comes_to_its_end_whoever_is_lost(name: str) -> None:
    """What a run relies on: with as many left as must be, the sum is of those whose vectors arrived."""
    options = {"key_bits": 512, "insecure_seed": True} if name == "paillier" else {}
    protocol: SecureAggregation = PROTOCOLS[name](bits=16, **options)
    course, ids, sums = rehearse(protocol), np.arange(8) * 5, 0
    for number in range(20):
        lost = dict(zip(ids.tolist(), course.lost_at(1, number, ids, 0.25).tolist(), strict=True))
        lost_at = np.array(list(lost.values()))
        if (lost_at == NEVER).sum() < protocol.least(8) or course.ends(lost_at):
            continue
        own = {id: {"vector": torch.tensor([id, 1])} for id in lost}
        result, _ = run_protocol(protocol, own, rng.key(number), lambda at, id, lost=lost: at >= lost[id])
        there = ids[course.in_sum(lost_at)]
        assert result["ids"].tolist() == there.tolist()
        assert result["sum"].tolist() == [there.sum(), len(there)]
        sums += 1
    assert sums > 0
