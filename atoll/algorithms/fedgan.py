"""FedGAN: a generator and a discriminator, both trained by clients and averaged by the server."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from atoll import rng, tree
from atoll.algorithms.frechet import frechet_distance, random_features
from atoll.algorithms.local import begin, delta_update, descend, move, row_noise
from atoll.algorithms.optimizers import SGD, Optimizer, zero
from atoll.core import Info, Model, Positive, PublicExamples, Task, Total, Traits, Unsigned, Update, gradient_and_value
from atoll.errors import ConfigError
from atoll.tree import Tree

_PREFIX = "generator."
_SAMPLES = 256  # that coverage is counted on


@dataclass(frozen=True)
class FedGAN:
    """FedAvg of two networks that play against each other on every client (Rasouli et al., 2020).

    For every batch the discriminator moves against supervised * CE(real, y) + softplus(-l(real)) + softplus(l(fake)),
    l = logsumexp of its class logits; then the generator, with `generator_lr`, against |mean f(real) - mean f(fake)|^2,
    f what enters the last layer (feature matching; Salimans et al., 2016). `coverage` in the record is the share of
    classes that the discriminator sees in what the generator makes: in 1 of 4 K samples at least, K the classes. Where
    the server has examples of its own (server.root), `frechet` is the distance of as many generated ones from them, in
    16 random features (`frechet.py`).
    """

    task: Task
    lr: Positive
    generator_lr: Unsigned = 0.1
    supervised: Unsigned = 1.0
    optimizer: Optimizer = SGD()
    server_lr: Positive = 1.0
    public: PublicExamples | None = None

    def traits(self) -> Traits:
        measured = ("coverage",) if self.public is None else ("coverage", "frechet")
        return Traits(draws=True, records=measured, public=self.public is not None)

    def init(self, model: Model, key: Tensor) -> Tree:
        if not any(name.startswith(_PREFIX) for name in model["params"]):
            raise ConfigError(
                "algorithm.name: fedgan trains a generator beside a discriminator, and the model has none. Use "
                "task.model = 'gan'."
            )
        return {**model, **dict.fromkeys(self.traits().records, zero(model["params"]))}

    def client_state(self, model: Model) -> Tree:
        return {}

    def send(self, server: Tree) -> Tree:
        return {"params": server["params"], "buffers": server["buffers"]}

    def start(self, sent: Tree, own: Tree) -> Tree:
        return begin(self.optimizer, sent)

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        noise = row_noise(batch, 7, self._latent(carry["params"]))
        made = {**batch, "x": generated(carry["params"], noise, batch["x"].shape[1:])}
        g, (loss, _) = gradient_and_value(
            lambda p: (self._against(p, carry["buffers"], batch, made), {}), carry["params"]
        )
        judged = {k: torch.zeros_like(x) if k.startswith(_PREFIX) else x for k, x in g.items()}
        carry = descend(self.optimizer, {**carry, "loss": carry["loss"] + loss}, judged, self.lr)
        g, _ = gradient_and_value(lambda p: (self._unlike(p, carry["buffers"], batch, noise), {}), carry["params"])
        params = {k: x - self.generator_lr * g[k] if k.startswith(_PREFIX) else x for k, x in carry["params"].items()}
        return {**carry, "params": params}

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        return delta_update(carry, sent, info), own

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        new = move(server, total.mean(), self.server_lr)
        return {**new, "coverage": self._coverage(new), **self._frechet(new["params"])}

    def _against(self, params: Tree, buffers: Tree, batch: Tree, made: Tree) -> Tensor:
        """What the discriminator is to make small."""
        mask: Tensor = batch["mask"] / batch["mask"].sum().clamp(min=1)
        real, fake = (self.task.logits(params, buffers, b).logsumexp(-1) for b in (batch, made))
        loss, _ = self.task.loss(params, buffers, batch)
        return self.supervised * loss + ((F.softplus(-real) + F.softplus(fake)) * mask).sum()

    def _unlike(self, params: Tree, buffers: Tree, batch: Tree, noise: Tensor) -> Tensor:
        """What the generator is to make small."""
        mask: Tensor = (batch["mask"] / batch["mask"].sum().clamp(min=1))[:, None]
        made = {**batch, "x": generated(params, noise, batch["x"].shape[1:])}
        real, fake = (self.task.features(params, buffers, b) for b in (batch, made))
        return (((real - fake) * mask).sum(0) ** 2).sum()

    def _latent(self, params: Tree) -> tuple[int]:
        return (params[f"{_PREFIX}hidden.weight"].shape[-1],)

    def _frechet(self, params: Tree) -> Tree:
        if self.public is None:
            return {}
        made = self._samples(params, "frechet", len(self.public))
        distance = frechet_distance(random_features(made), random_features(self.public.inputs["x"]))
        return {"frechet": distance.to(zero(params))}

    def _samples(self, params: Tree, name: str, count: int) -> Tensor:
        """So many generated inputs, flat: the same noise in every round."""
        noise = rng.normal(rng.key(name), (count, *self._latent(params))).to(tree.device(params))
        return generated(params, noise, ())

    def _coverage(self, server: Tree) -> Tensor:
        params = server["params"]
        made = self._samples(params, "coverage", _SAMPLES)
        batch = {"x": made, "mask": torch.ones(_SAMPLES, device=made.device)}
        logits = self.task.logits(params, server["buffers"], batch, training=False)
        counts = F.one_hot(logits.argmax(-1), logits.shape[-1]).sum(0)
        return (counts * 4 * logits.shape[-1] >= _SAMPLES).float().mean()


def generated(params: Tree, noise: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Inputs of this shape from the generator of a `gan`; without a shape, flat ones."""
    hidden = torch.relu(F.linear(noise, params[f"{_PREFIX}hidden.weight"], params[f"{_PREFIX}hidden.bias"]))
    out = torch.sigmoid(F.linear(hidden, params[f"{_PREFIX}out.weight"], params[f"{_PREFIX}out.bias"]))
    return out.reshape(len(noise), *shape) if shape else out
