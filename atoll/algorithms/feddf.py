"""FedDF: the server's model learns from the ensemble of the clients' models."""

from dataclasses import dataclass

from torch import Tensor

from atoll import rng, tree
from atoll.algorithms.distilling import Match, check_public, mismatch, public_scores, turns
from atoll.algorithms.local import begin, descend, difference, gradient, model_of, move
from atoll.algorithms.optimizers import SGD, Optimizer
from atoll.core import (
    Count,
    Info,
    Model,
    Positive,
    PublicExamples,
    Task,
    Total,
    Traits,
    Update,
    Whole,
    class_logits,
    functional,
    gradient_and_value,
)
from atoll.tree import Tree


@dataclass(frozen=True)
class FedDF:
    """FedAvg, and then `steps` of distillation on public examples (Lin et al., 2020).

    w <- the weighted mean of the w_k; then w moves against the gradient of T^2 KL(softmax(z / T) || softmax(f(w) / T)),
    z the weighted mean of the clients' scores (the paper's is the plain one: with the transform equal_weights both the
    model and z are plain means). A client sends these scores with its model, so that a server that sees
    sums alone (a secure one) can do the same. No steps are FedAvg. `match = "scores"`: half the squared distance of the
    scores in place of the divergence.
    """

    task: Task
    lr: Positive
    public: PublicExamples | None
    steps: Whole = 50
    distil_lr: Positive = 0.1
    batch: Count = 32
    temperature: Positive = 1.0
    match: Match = "kl"
    optimizer: Optimizer = SGD()
    server_lr: Positive = 1.0

    def __post_init__(self) -> None:
        check_public(self.public, "feddf")

    def traits(self) -> Traits:
        return Traits(public=True)

    def init(self, model: Model, key: Tensor) -> Tree:
        return model

    def client_state(self, model: Model) -> Tree:
        return {}

    def send(self, server: Tree) -> Tree:
        return server

    def start(self, sent: Tree, own: Tree) -> Tree:
        return begin(self.optimizer, sent)

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        g, carry = gradient(self.task, carry, batch)
        return descend(self.optimizer, carry, g, self.lr)

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        assert self.public is not None
        scores = public_scores(self.task, model_of(carry), self.public)
        return Update({**difference(carry, sent), "scores": scores}, info.examples), own

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        mean = total.mean()
        return self._distilled(move(server, mean, self.server_lr), mean["scores"], rng.fold_name(key, "distil"))

    def _distilled(self, server: Tree, taught: Tensor, key: Tensor) -> Tree:
        """The model after its steps towards the ensemble's scores; statistics stay as they were averaged."""
        assert self.public is not None
        params = server["params"]
        with functional():
            for rows in turns(len(self.public), self.batch, self.steps, key):
                index = rows.to(taught.device)
                params = tree.add_scaled(params, self._slope(params, server["buffers"], taught, index), -self.distil_lr)
        return {**server, "params": params}

    def _slope(self, params: Tree, buffers: Tree, taught: Tensor, index: Tensor) -> Tree:
        assert self.public is not None
        batch = self.public.batch(index)

        def loss(params: Tree) -> tuple[Tensor, Tree]:
            logits = class_logits(self.task.logits(params, buffers, batch, training=False))
            return mismatch(logits, taught[index], self.match, self.temperature), {}

        return gradient_and_value(loss, params)[0]
