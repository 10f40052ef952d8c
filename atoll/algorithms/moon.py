"""MOON."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from atoll.algorithms.local import begin, check_divisor, delta_update, descend, gradient, model_of, move
from atoll.algorithms.optimizers import SGD, Optimizer
from atoll.core import Info, Model, Positive, Task, Total, Traits, Unsigned, Update
from atoll.tree import Tree


@dataclass(frozen=True)
class Moon:
    """Model-contrastive learning: features near the server's, far from the client's last ones (Li et al., 2021).

    Loss + mu * -log(exp(s(z, z_server)/T) / (exp(s(z, z_server)/T) + exp(s(z, z_last)/T))), s the cosine.
    The server's and the last model are fixed and only looked at, so they run as when they predict, as in the authors'
    code: running statistics, no dropout. The last model of a client that comes for the first time is the initial one.
    """

    task: Task
    lr: Positive
    mu: Unsigned = 1.0
    temperature: Positive = 0.5
    optimizer: Optimizer = SGD()
    server_lr: Positive = 1.0

    def __post_init__(self) -> None:
        check_divisor("temperature", self.temperature)

    def traits(self) -> Traits:
        return Traits()

    def init(self, model: Model, key: Tensor) -> Tree:
        return model

    def client_state(self, model: Model) -> Tree:
        return {"last": model}

    def send(self, server: Tree) -> Tree:
        return server

    def start(self, sent: Tree, own: Tree) -> Tree:
        return begin(self.optimizer, sent)

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        near, far = self._fixed_features(sent, batch), self._fixed_features(own["last"], batch)

        def contrast(params: Tree) -> Tensor:
            z = self.task.features(params, carry["buffers"], batch)
            gap = (F.cosine_similarity(z, far, dim=1) - F.cosine_similarity(z, near, dim=1)) / self.temperature
            pull: Tensor = (F.softplus(gap) * batch["mask"]).sum() / batch["mask"].sum().clamp(min=1)
            return self.mu * pull

        g, carry = gradient(self.task, carry, batch, extra=contrast)
        return descend(self.optimizer, carry, g, self.lr)

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        return delta_update(carry, sent, info), {"last": model_of(carry)}

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        return move(server, total.mean(), self.server_lr)

    def _fixed_features(self, model: Model, batch: Tree) -> Tensor:
        return self.task.features(model["params"], model["buffers"], batch, training=False)
