"""What CUDA graphs rest on, where there is no GPU."""

import torch
from torch.func import vmap

from atoll import tree
from atoll.algorithms.fedsgd import FedSGD
from atoll.engines.vector.cuda_graphs import unaliased
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


def test_convolutions_of_the_carry_lie_as_their_kernels_read_them() -> None:
    start = {"conv": torch.randn(2, 4, 3, 5, 5), "linear": torch.randn(2, 4, 3)}
    carry = unaliased(start, {})
    assert carry["conv"].permute(0, 1, 3, 4, 2).is_contiguous()
    assert all(torch.equal(carry[k], start[k]) for k in start)
