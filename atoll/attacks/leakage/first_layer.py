"""The closed form of the first dense layer: dW's row over db is the input (Phong et al., 2018; FedEval's FC attack).

Of a dense layer Wx + b with the loss's derivatives a = dl/d(Wx + b): dl/dW = a x^T and dl/db = a, so every row of dW
divided by its entry of db is x. Of a batch, or of several steps, row r is the mean of inputs weighted by a_r, and x_i
itself wherever x_i alone ever activates neuron r.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from atoll.attacks.leakage.observe import Observed
from atoll.attacks.leakage.pixels import Pixels01
from atoll.errors import ConfigError
from atoll.experiment import Setup
from atoll.tree import Tree

_ALIKE = 0.01  # rows that differ by less, root mean square of the range, are of one input
_SILENT = 1e-6  # a neuron whose bias moved by less, of the most that one moved, was not active
_GROUPS = 16  # at a time: distances between all rows


def first_dense(setup: Setup) -> str:
    """The name of the dense layer with a bias that takes the examples themselves, or a refusal."""
    for name, layer in setup.task.model.named_modules():
        if isinstance(layer, nn.Linear):
            if layer.bias is None or not _takes_examples(setup, name):
                break
            return str(name)
    raise ConfigError(
        "--method: 'fc' needs a dense layer with a bias that takes the examples themselves; the first dense layer of "
        f"{(setup.experiment.task.model or {'name': 'this model'})['name']} does not. Use --method inverting."
    )


def _takes_examples(setup: Setup, name: str) -> bool:
    """Tried: does what goes in there equal an example, number by number?"""
    shape = (2, *setup.dataset.inputs)
    x = torch.linspace(-1, 1, math.prod(shape), device=setup.device).reshape(shape)
    y = setup.dataset.train["y"][:2].to(setup.device)
    batch = {"x": x, "y": y, "mask": torch.ones(2, device=setup.device)}
    batch["key"] = torch.zeros(2, dtype=torch.int64, device=setup.device)
    nothing = {name: torch.zeros((), device=setup.device)}
    with torch.no_grad():
        seen = setup.task.losses_with_output_offsets(setup.model["params"], setup.model["buffers"], batch, nothing)[1]
    into = seen[name]
    return into.numel() == x.numel() and torch.equal(into.reshape(2, -1), x.reshape(2, -1))


def fc_attack(seen: Observed, pixels: Pixels01) -> Tensor:
    """(G, m * n, *inputs): for each group as many inputs as its clients hold."""
    name, inputs = first_dense(seen.setup), seen.setup.dataset.inputs
    G, m, n = seen.victims.held.shape
    found = [_inputs(_rows(seen.target, name, slice(g, g + _GROUPS)), m * n, pixels) for g in range(0, G, _GROUPS)]
    return torch.cat(found).reshape(G, m * n, *inputs)


def _rows(target: Tree, name: str, groups: slice) -> tuple[Tensor, Tensor]:
    """(G, R, D) and (G, R): the layer's rows and biases."""
    return target[f"{name}.weight"][groups], target[f"{name}.bias"][groups]


def _inputs(layer: tuple[Tensor, Tensor], wanted: int, pixels: Pixels01) -> Tensor:
    """Rows over biases; of those, the ones that the attacker believes in.

    Rows of one input are alike, rows of mixtures are not: first come those on which most neurons agree, then those
    within the range of pictures and with a bias that moved much. One of each.
    """
    weight, bias = layer
    size = bias.abs()
    active = size > _SILENT * size.amax(1, keepdim=True)
    rows = torch.where(active[..., None], weight / torch.where(active, bias, 1.0)[..., None], pixels.low)
    near = torch.cdist(rows, rows) / math.sqrt(rows.shape[-1]) < _ALIKE * (pixels.high - pixels.low)
    near = near & active[:, None] & active[:, :, None]
    votes = near.sum(2).to(rows.dtype)
    slack = 0.05 * (pixels.high - pixels.low)
    within = ((rows >= pixels.low - slack) & (rows <= pixels.high + slack)).to(rows.dtype).mean(2)
    score = votes + 2 * within + 0.5 * size / size.amax(1, keepdim=True).clamp(min=1e-30)
    return pixels.clamp(_one_of_each(rows, near, torch.where(active, score, -1.0), wanted))


def _one_of_each(rows: Tensor, near: Tensor, score: Tensor, wanted: int) -> Tensor:
    """(G, wanted, D): the best row, then the best that is not near one taken before."""
    taken = []
    at = torch.arange(len(rows), device=rows.device)
    for _ in range(wanted):
        best = score.argmax(1)
        taken.append(rows[at, best])
        spent = near[at, best] | (torch.arange(rows.shape[1], device=rows.device) == best[:, None])
        score = torch.where(spent, score - 1e6, score)
    return torch.stack(taken, 1)
