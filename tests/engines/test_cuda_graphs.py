"""What CUDA graphs rest on, where there is no GPU."""

import torch
from torch.func import vmap

from atoll import tree
from atoll.algorithms.fedsgd import FedSGD
from atoll.engines.vector.cuda_graphs import unaliased
from atoll.tasks.kernels import kernel_layout
from atoll.testing.problems import network


def test_leaves_that_are_one_tensor_or_were_sent_get_memory_of_their_own() -> None:
    sent, none = torch.ones(3), torch.zeros(3)
    carry = unaliased({"params": sent, "seen": none, "loss": none, "view": none[:2]}, {"sent": sent})
    assert len({x.untyped_storage().data_ptr() for x in (*tree.leaves(carry), sent)}) == 5
    assert carry["params"].tolist() == [1, 1, 1]
    assert carry["view"].tolist() == [0, 0]


def test_a_stack_of_runs_of_fedsgd_counts_rows_and_losses_apart() -> None:
    problem = network()
    models = tree.map(torch.clone, tree.stack(problem.model, 3))
    carry = unaliased(vmap(lambda sent: FedSGD(problem.task, 0.1).start(sent, {}))(models), models)
    carry["loss"].fill_(7.0)  # as a recorded step does, in place
    assert carry["seen"].tolist() == [0, 0, 0]


def test_a_carry_lies_in_memory_as_it_was_laid() -> None:
    laid = kernel_layout(torch.randn(2, 4, 3, 5, 5))
    carry = unaliased({"conv": laid}, {"sent": laid})
    assert carry["conv"].data_ptr() != laid.data_ptr()
    assert carry["conv"].stride() == laid.stride()
