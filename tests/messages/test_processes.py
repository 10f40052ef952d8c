"""A process for each worker: the results of one process, and one that is killed halfway."""

import pytest

from atoll.errors import ProtocolError
from atoll.messages import ConnectionLimits, Ended, WorkerTopology, run, run_processes
from tests.support.message_workers import (
    Silent,
    adder_or_answerer,
    waiting_for_who_fails,
    with_one_that_dies,
    with_one_that_fails,
)

STAR = WorkerTopology.star("server", ["client-0", "client-1", "client-2"])
LIMITS = ConnectionLimits(joining=60.0, patience=1.0)


def sums(done: Ended) -> dict[str, int]:
    return {name: int(x) for name, x in done.results["server"]["sums"].items()}


def silent(name: str) -> Silent:
    return Silent()


@pytest.mark.slow
def test_who_is_killed_halfway_is_gone_and_the_others_end() -> None:
    """kill -9 between its first and its second answer: the first counts."""
    done = run_processes(with_one_that_dies, STAR, seconds=60, limits=LIMITS)
    assert sums(done) == {"client-0": 6, "client-1": 6, "client-2": 18}
    assert int(done.results["server"]["lost"]) == 1
    assert done.gone == {"client-1": "its process ended without a word (killed by SIGKILL)"}
    assert done.results.keys() == {"server", "client-0", "client-2"}


@pytest.mark.slow
def test_the_results_are_those_of_one_process() -> None:
    done = run_processes(adder_or_answerer, STAR, seconds=60, limits=LIMITS)
    assert sums(done) == sums(run({name: adder_or_answerer(name) for name in STAR.names}, STAR))
    assert not done.gone


@pytest.mark.slow
def test_a_worker_that_fails_is_named_with_its_reason() -> None:
    words = r"worker 'client-1': ValueError: out of paper \(in worker 'client-1', at 'ask' of server\)"
    with pytest.raises(ProtocolError, match=words):
        run_processes(with_one_that_fails, STAR, seconds=60, limits=LIMITS)


@pytest.mark.slow
def test_who_failed_is_named_before_who_was_left_alone_by_that() -> None:
    with pytest.raises(ProtocolError, match=r"worker 'client-0': ValueError: out of paper"):
        run_processes(waiting_for_who_fails, STAR, seconds=60, limits=LIMITS)


@pytest.mark.slow
def test_workers_that_do_not_end_are_stopped() -> None:
    with pytest.raises(ProtocolError, match="did not end within 1 seconds"):
        run_processes(silent, STAR, seconds=1, limits=LIMITS)
