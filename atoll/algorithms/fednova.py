"""FedNova."""

from dataclasses import dataclass

from torch import Tensor

from atoll import tree
from atoll.algorithms.local import begin, delta_update, descend, gradient, move
from atoll.algorithms.optimizers import SGD, EffectiveSteps, Optimizer, linear
from atoll.core import Info, Model, Positive, Task, Total, Traits, Update
from atoll.errors import ConfigError
from atoll.tree import Tree


@dataclass(frozen=True)
class FedNova:
    """Each client's change per gradient, times the mean number of gradients (Wang et al., 2020).

    d_i = (w_i - w) / |a_i|;  w <- w + server_lr * (sum p_i |a_i|) (sum p_i d_i),  p_i = n_i / n.
    |a_i| is the number of steps for plain SGD; momentum rho makes it (t - rho (1 - rho^t) / (1 - rho)) / (1 - rho).
    """

    task: Task
    lr: Positive
    optimizer: Optimizer = SGD()
    server_lr: Positive = 1.0

    def __post_init__(self) -> None:
        if linear(self.optimizer) is None:
            raise ConfigError(
                "algorithm.optimizer: FedNova counts gradients, which needs an optimizer that adds them up. "
                "Use optimizer = 'sgd' (momentum is fine)."
            )

    def traits(self) -> Traits:
        return Traits()

    def init(self, model: Model, key: Tensor) -> Tree:
        return model

    def client_state(self, model: Model) -> Tree:
        return {}

    def send(self, server: Tree) -> Tree:
        return server

    def start(self, sent: Tree, own: Tree) -> Tree:
        return {**begin(self.optimizer, sent), "effective": EffectiveSteps(self.optimizer).init(sent["params"])}

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        g, carry = gradient(self.task, carry, batch)
        carry = descend(self.optimizer, carry, g, self.lr)
        return {**carry, "effective": EffectiveSteps(self.optimizer).add(carry["effective"])}

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        update, n = delta_update(carry, sent, info), carry["effective"]["steps"]
        per_gradient = tree.scale(update.value["delta"], 1.0 / n)
        return update._replace(value={**update.value, "delta": per_gradient, "gradients": n}), own

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        mean = total.mean()
        return move(server, {**mean, "delta": tree.scale(mean["delta"], mean["gradients"])}, self.server_lr)
