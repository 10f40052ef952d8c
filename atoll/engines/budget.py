"""How many clients fit: measured for one client, before the first round."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Model, Task
from atoll.data import machine_memory
from atoll.tree import Tree


def total_bytes(device: torch.device) -> int:
    """The memory of the machine or of the GPU. Not the free memory, which would make chunks depend on the moment."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return machine_memory()


def default_budget(device: torch.device) -> int:
    """A quarter of the machine's memory, or half of the GPU's."""
    return total_bytes(device) // (2 if device.type == "cuda" else 4)


def activation_bytes(task: Task, model: Model, batch: Tree, shared: Sequence[Tensor] = ()) -> int:
    """What autograd keeps of one client's forward pass, but for what all clients share."""
    saved_bytes: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        saved_bytes[storage.data_ptr()] = storage.nbytes()
        return x

    params = tree.map(lambda x: x.detach().requires_grad_(), model["params"])
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        task.loss(params, model["buffers"], batch)
    own = {x.untyped_storage().data_ptr() for x in (*tree.leaves(params), *shared)}
    return sum(n for p, n in saved_bytes.items() if p not in own)


def client_bytes(
    task: Task, model: Model, batch: Tree, carry: Tree, memory: Tree, shared: Sequence[Tensor] = ()
) -> int:
    """One client's share of the stack: what it carries (old and new), gradients, update, memory, activations twice.

    `shared`: tensors that all clients read, such as a frozen base; they are no client's.
    """
    moving = 2 * tree.nbytes(carry) + 3 * tree.nbytes(model["params"]) + 2 * tree.nbytes(memory)
    return moving + 2 * activation_bytes(task, model, batch, shared)
