"""Agnostic federated learning."""

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll import tree
from atoll.algorithms.local import (
    add_loss_at_server,
    begin,
    descend,
    difference,
    equal_weight,
    gradient,
    loss_at_server,
    model_of,
    move,
    no_loss_at_server,
)
from atoll.algorithms.optimizers import SGD, Optimizer, zero
from atoll.core import Info, Model, Positive, Task, Total, Traits, Unsigned, Update
from atoll.tree import Tree


@dataclass(frozen=True)
class AgnosticFL:
    """The model that is best for the worst mixture of clients: min over w, max over mixtures p (Mohri et al., 2019).

    w <- w + server_lr * sum_k p_k (w_k - w); p <- the point of the simplex nearest to p + mixture_lr * F(w), with
    F_k(w) the loss of client k at the server's model. p begins even and is the server's state. Of a cohort of C of N
    clients both sums are estimated: times N / C. A client sends its loss in a vector of N numbers that is 0 elsewhere,
    so that sums keep clients apart: under [secure], too, which therefore refuses it. mixture_lr = 0 is FedAvg of
    clients that count alike.
    """

    task: Task
    lr: Positive
    population: int
    mixture_lr: Unsigned = 0.1
    optimizer: Optimizer = SGD()
    server_lr: Positive = 1.0

    def traits(self) -> Traits:
        return Traits(records=("largest_weight",), places_by_client=True)

    def init(self, model: Model, key: Tensor) -> Tree:
        even = zero(model["params"]).expand(self.population) + 1.0 / self.population
        return {**model, "mixture": even, "largest_weight": even.max()}

    def client_state(self, model: Model) -> Tree:
        return {}

    def send(self, server: Tree) -> Tree:
        return {**model_of(server), "mixture": server["mixture"]}

    def start(self, sent: Tree, own: Tree) -> Tree:
        return {**begin(self.optimizer, sent), **no_loss_at_server(sent)}

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        carry = add_loss_at_server(self.task, carry, sent, batch)
        g, carry = gradient(self.task, carry, batch)
        return descend(self.optimizer, carry, g, self.lr)

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        parts, clients = difference(carry, sent), torch.arange(self.population, device=info.id.device)
        mine = (clients == info.id).to(sent["mixture"])
        weight = self.population * (mine * sent["mixture"]).sum()  # 1 in the mean
        losses = mine * loss_at_server(carry)
        scaled = tree.scale(parts["delta"], weight)
        return Update({**parts, "delta": scaled, "losses": losses}, equal_weight(info)), own

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        mean = total.mean()
        mixture = onto_simplex(server["mixture"] + self.mixture_lr * self.population * mean["losses"])
        return {**move(server, mean, self.server_lr), "mixture": mixture, "largest_weight": mixture.max()}


def onto_simplex(point: Tensor) -> Tensor:
    """The nearest point whose coordinates are not negative and sum to 1 (Duchi et al., 2008).

    max(x_i - theta, 0), theta from the largest coordinates that stay above 0.

    >>> onto_simplex(torch.tensor([0.5, 0.5])).tolist(), onto_simplex(torch.tensor([2.0, 0.0, -1.0])).tolist()
    ([0.5, 0.5], [1.0, 0.0, 0.0])
    """
    ordered = point.sort(descending=True).values
    counts = torch.arange(1, point.shape[-1] + 1, device=point.device, dtype=point.dtype)
    thetas = (ordered.cumsum(-1) - 1.0) / counts
    last = (ordered > thetas).sum(-1, keepdim=True) - 1
    return (point - thetas.gather(-1, last)).clamp(min=0.0)
