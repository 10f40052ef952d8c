"""What rounds ask for, and what the answers hold."""

from dataclasses import replace

import pytest
import torch

from atoll import rng, tree
from atoll.algorithms.fedavg import FedAvg
from atoll.core import Columns, Pending, Train, Trained
from atoll.testing.harness import federation
from atoll.testing.problems import network


def request() -> Train:
    problem = network()
    return federation(problem, FedAvg(problem.task, 0.1)).request([5, 0, 3], staleness=torch.tensor([2.0, 0.0, 1.0]))


@pytest.mark.parametrize("index", [slice(1, 3), torch.tensor([1, 2])])
def test_some_clients_of_a_request_are_sent_what_all_are_sent(index: slice | torch.Tensor) -> None:
    whole = request()
    part = whole.rows(index)
    assert part.ids.tolist() == [0, 3]
    assert part.staleness is not None
    assert part.staleness.tolist() == [0.0, 1.0]
    assert part.sent is whole.sent
    assert part.program is whole.program
    assert replace(whole, staleness=None).rows(index).staleness is None


@pytest.mark.parametrize("index", [slice(1, 3), torch.tensor([1, 2])])
def test_without_a_common_server_each_is_sent_its_own_row(index: slice | torch.Tensor) -> None:
    sent, state = {"w": torch.arange(6.0).reshape(3, 2)}, {"bound": torch.arange(3.0)}
    part = replace(request(), sent=sent, state=state, per_client=True).rows(index)
    assert part.sent["w"].tolist() == [[2.0, 3.0], [4.0, 5.0]]
    assert part.state["bound"].tolist() == [1.0, 2.0]
    nothing = replace(request(), sent=sent, state={"chain": {}}, per_client=True).rows(index)
    assert nothing.state == {"chain": {}}


def test_nobody_of_a_request_is_a_request_too() -> None:
    assert request().rows(slice(0, 0)).ids.tolist() == []


def test_an_answer_that_is_there_counts_the_rows_of_those_who_were_not_left_out() -> None:
    columns = Columns(torch.tensor([0.5, 2.0, 0.1]), torch.tensor([True, False, True]), torch.tensor([2, 0]))
    trained = Trained.settled(None, torch.tensor([4.0, 2.0, 3.0]), columns)
    assert trained.rows == 7.0
    assert trained.loss is columns.loss
    assert trained.finite is columns.finite
    assert trained.order is columns.order


def test_columns_are_not_asked_for_before_somebody_looks() -> None:
    def wait() -> Columns:
        raise AssertionError("waited")

    promised = Trained(None, torch.ones(2), wait, 2.0)
    assert (promised.rows, len(promised.examples)) == (2.0, 2)
    with pytest.raises(AssertionError, match="waited"):
        promised.loss


def test_what_is_done_is_what_was_promised() -> None:
    answer = object()
    pending = Pending.done(answer)
    assert pending.result() is pending.promised is answer


def test_a_request_is_told_apart_by_who_it_is_and_not_by_its_tensors() -> None:
    a, b = request(), request()
    assert a != b
    assert {a: 1}[a] == 1
    assert tree.digest(a.sent) == tree.digest(b.sent)
    assert torch.equal(a.key, rng.key("round", 0))
