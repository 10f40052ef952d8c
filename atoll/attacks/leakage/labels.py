"""Labels from an update: the sign rule for one example, counts for batches."""

from __future__ import annotations

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.attacks.leakage.observe import Observed
from atoll.attacks.leakage.pixels import Pixels01
from atoll.core import functional
from atoll.errors import ConfigError
from atoll.tree import Tree

_DUMMIES = 4  # made-up clients for each class, over which its push is the mean


def recovered_labels(seen: Observed, pixels: Pixels01, seed: int = 0) -> Tensor:
    """(G, m, n) labels that the attacker believes in, each group's in rising order; which is whose stays open."""
    _check(seen)
    G, m, n = seen.victims.held.shape
    push = head_push(seen, seen.target)
    each = seen.victims.held.reshape(G, -1).sum(1)
    if m * n == 1:
        return sign_rule(push).reshape(G, 1, 1)
    counts = label_counts(push, class_pushes(seen, pixels, seed), each)
    return _listed(counts, m * n).reshape(G, m, n)


def sign_rule(push: Tensor) -> Tensor:
    """The class whose output is pushed up, of one example: dl/dz_k = p_k - [k = y] is below 0 for y alone (iDLG)."""
    return push.argmax(1)


def head_push(seen: Observed, update: Tree) -> Tensor:
    """(..., K): how far an update pushes every class's output up: the last layer's biases, or its rows summed up."""
    names = seen.setup.task.names("head")
    bias = next((name for name in names if name.endswith("bias")), None)
    weight = next(name for name in names if name.endswith("weight"))
    down = -1.0 if seen.simulation.part == "gradient" else 1.0
    push: Tensor = down * (update[bias] if bias is not None else update[weight].sum(-1))
    return push


def class_pushes(seen: Observed, pixels: Pixels01, seed: int) -> Tensor:
    """(K, K): row k is the push of a client all of whose examples are of class k, simulated on made-up examples.

    LLG (Wainakh et al., 2022) has the same from random inputs for one gradient: push = -(p - e_k). Simulating the
    client's own program makes it hold for any algorithm, rate and number of epochs. Scales that transforms put on the
    update, such as a clip, are not known to it.
    """
    K, first = seen.setup.dataset.outputs, seen.part(slice(0, 1))
    work = {name: column[0, 0] for name, column in first.work().items()}
    n = first.victims.x.shape[2]
    shape = (K * _DUMMIES, n, *seen.setup.dataset.inputs)
    x = pixels.low + (pixels.high - pixels.low) * rng.uniform(rng.key(seed, "class pushes"), shape).to(seen.device)
    y = torch.arange(K, device=seen.device).repeat_interleave(_DUMMIES)[:, None].expand(-1, n)
    with functional(), torch.no_grad():
        updates = torch.func.vmap(lambda a, b: seen.simulation.update(a, b, work))(x, y)
    return head_push(seen, tree.map(torch.Tensor.detach, updates)).reshape(K, _DUMMIES, K).mean(1)


def label_counts(push: Tensor, pushes: Tensor, examples: Tensor) -> Tensor:
    """(G, K) whole numbers that add up to `examples`: push = sum of counts / n times pushes, by least squares.

    That the shares add up to 1 is one more equation, as heavy as all others: pushes of all classes cancel out.
    """
    heavy = pushes.abs().amax().clamp(min=1e-12) * len(pushes)
    left = torch.cat([pushes.T, heavy.expand(1, len(pushes))]).double()
    right = torch.cat([push, heavy.expand(len(push), 1)], 1).double()
    shares = torch.linalg.lstsq(left.cpu(), right.T.cpu(), driver="gelsd").solution.T.clamp(min=0).to(push.device)
    wanted = shares / shares.sum(1, keepdim=True).clamp(min=1e-12) * examples[:, None]
    whole = wanted.floor()
    left_over = (examples - whole.sum(1)).long()
    rank = torch.argsort(torch.argsort(wanted - whole, dim=1, descending=True), dim=1)
    counts: Tensor = whole + (rank < left_over[:, None])
    return counts.long()


def label_accuracy(labels: Tensor, y: Tensor, held: Tensor) -> Tensor:
    """(G,) the share of a group's labels that were found, whichever example they stand at: axes (G, examples)."""
    K = int(max(labels.max(), y.max())) + 1
    mine, true = (torch.zeros(len(y), K, device=y.device).scatter_add_(1, x, held.float()) for x in (labels, y))
    return torch.minimum(mine, true).sum(1) / held.sum(1)


def _listed(counts: Tensor, wide: int) -> Tensor:
    """(G, wide): every class as often as it counts, then the last one for what is padding."""
    places = torch.arange(wide, device=counts.device)
    return (places[None, :, None] >= counts.cumsum(1)[:, None]).sum(2).clamp(max=counts.shape[1] - 1)


def _check(seen: Observed) -> None:
    if seen.setup.dataset.kind != "classification":
        raise ConfigError(
            f"--method: labels are recovered where examples have classes, and {seen.setup.dataset.name} is "
            f"{seen.setup.dataset.kind}. Use --method fc."
        )
