"""An algorithm with a second model: a teacher that is learned beside the model, and that the model imitates.

PYTHONPATH=examples atoll check distillation:Distillation
PYTHONPATH=examples atoll run examples/distillation.toml
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from atoll.algorithms.local import begin, descend, difference, gradient, model_of, move
from atoll.algorithms.optimizers import SGD, Optimizer
from atoll.core import Info, Model, Positive, SecondModel, Task, Total, Traits, Unsigned, Update
from atoll.tree import Tree


@dataclass(frozen=True)
class Distillation:
    """FedAvg of a model and of its teacher; the model's loss is its own + mu * KL(teacher || model).

    After Hinton et al. (2015). The teacher learns from labels alone; its part of an update goes by a name of its own.
    """

    task: Task
    teacher: SecondModel
    lr: Positive
    mu: Unsigned = 1.0
    optimizer: Optimizer = SGD()

    def traits(self) -> Traits:
        return Traits()

    def init(self, model: Model, key: Tensor) -> Tree:
        return {**model, "teacher": self.teacher.init(key)}

    def client_state(self, model: Model) -> Tree:
        return {}

    def send(self, server: Tree) -> Tree:
        return server

    def start(self, sent: Tree, own: Tree) -> Tree:
        return {**begin(self.optimizer, sent), "teacher": begin(self.optimizer, sent["teacher"])}

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        taught = self.teacher.logits(*model_of(carry["teacher"]).values(), batch, training=False)

        def imitation(params: Tree) -> Tensor:
            logits = self.task.logits(params, carry["buffers"], batch)
            return self.mu * divergence(logits, taught, batch["mask"])

        g, teacher = gradient(self.teacher, carry["teacher"], batch)
        teacher = descend(self.optimizer, teacher, g, self.lr)
        g, carry = gradient(self.task, carry, batch, extra=imitation)
        return {**descend(self.optimizer, carry, g, self.lr), "teacher": teacher}

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        teacher = difference(carry["teacher"], sent["teacher"])
        return Update({**difference(carry, sent), "teacher": teacher}, info.examples), own

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        mean = total.mean()
        return {**move(server, mean, 1.0), "teacher": move(server["teacher"], mean["teacher"], 1.0)}


def divergence(logits: Tensor, taught: Tensor, mask: Tensor) -> Tensor:
    """The mean over real examples of KL(teacher || model)."""
    each = F.kl_div(logits.log_softmax(-1), taught.log_softmax(-1), reduction="none", log_target=True).sum(-1)
    return (each * mask).sum() / mask.sum().clamp(min=1)
