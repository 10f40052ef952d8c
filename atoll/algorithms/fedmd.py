"""FedMD: clients whose models differ talk in class scores."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from atoll import tree
from atoll.algorithms.distilling import Match, check_public, mismatch, public_scores
from atoll.algorithms.heterofl import Width, check_shares, check_widths, even_shares
from atoll.algorithms.local import begin, descend, equal_weight, gradient, model_of
from atoll.algorithms.optimizers import SGD, Optimizer, zero
from atoll.core import (
    ClientGroups,
    Count,
    Info,
    Model,
    Positive,
    PublicExamples,
    Task,
    Total,
    Traits,
    Unsigned,
    Update,
    class_logits,
    gradient_and_value,
    unit_axes,
    unit_mask,
)
from atoll.errors import ConfigError
from atoll.tree import Tree

KIND = "kind"  # of a `one_of`: 1 for the network that is used


@dataclass(frozen=True)
class FedMD:
    """Every client keeps a model of its own; what travels are scores on public examples (Li & Wang, 2019).

    Consensus: the mean of all clients' scores. In the next round each client takes, for every batch of its own, a step
    of rate `digest_lr` towards the consensus on a public batch, and one on its own batch. (The paper digests first, and
    revisits its own data then.) Models are of several `widths`, in these `shares` of clients: a narrow one has the
    first units of every layer, and nothing is averaged between them. Or they are of several `kinds`, the networks of
    task.model = "one_of", each client with its own. digest_lr = 0 is `local`.
    """

    task: Task
    lr: Positive
    public: PublicExamples | None
    widths: tuple[Width, ...] = (1.0,)
    shares: tuple[Annotated[float, Field(gt=0, le=1)], ...] = ()
    digest_lr: Unsigned = 0.1
    batch: Count = 32
    temperature: Positive = 1.0
    match: Match = "kl"
    optimizer: Optimizer = SGD()
    kinds: Count = 1

    def __post_init__(self) -> None:
        check_public(self.public, "fedmd")
        if self.kinds > 1 and self.widths != (1.0,):
            raise ConfigError(
                "algorithm.widths: clients differ in kind already (algorithm.kinds). Put networks of several widths "
                "into task.model.of, and leave widths out."
            )
        if self.kinds == 1:
            check_widths(self.widths, self.shares)
        check_shares(self.shares, max(len(self.widths), self.kinds), "kinds" if self.kinds > 1 else "widths")

    def traits(self) -> Traits:
        several = max(len(self.widths), self.kinds)
        groups = ClientGroups(even_shares(several, self.shares)) if several > 1 else None
        return Traits(personal=True, partial=True, public=True, groups=groups)

    def init(self, model: Model, key: Tensor) -> Tree:
        check_kinds(model, self.kinds)
        assert self.public is not None
        consensus = torch.zeros_like(public_scores(self.task, model, self.public))
        return {**model, "consensus": consensus, "known": zero(model["params"])}

    def client_state(self, model: Model) -> Tree:
        return model_of(model)

    def send(self, server: Tree) -> Tree:
        return {"consensus": server["consensus"], "known": server["known"], "group": zero(server["params"])}

    def start(self, sent: Tree, own: Tree) -> Tree:
        held = tree.map(lambda x, m: tree.cast_like(x * m, x), own, self._masks(own, sent))
        begun = begin(self.optimizer, {**held, "params": self._of_kind(held["params"], sent)})
        return {**begun, "turn": zero(own["params"])}

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        mask = self._masks({"params": carry["params"]}, sent)["params"]
        towards = tree.map(torch.mul, self._slope(carry, sent), mask)
        digested = tree.add_scaled(carry["params"], towards, -self.digest_lr * sent["known"])
        params = self._of_kind(digested, sent)
        g, carry = gradient(self.task, {**carry, "params": params, "turn": carry["turn"] + 1}, batch)
        moved = descend(self.optimizer, carry, tree.map(torch.mul, g, mask), self.lr)
        return {**moved, "params": self._of_kind(moved["params"], sent)}

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        assert self.public is not None
        return Update({"scores": public_scores(self.task, carry, self.public)}, equal_weight(info)), model_of(carry)

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        return {**server, "consensus": total.mean()["scores"], "known": torch.ones_like(server["known"])}

    def _slope(self, carry: Tree, sent: Tree) -> Tree:
        """The gradient of what is left between a public batch's scores and the consensus."""
        assert self.public is not None
        size = min(self.batch, len(self.public))
        places = torch.arange(size, device=carry["turn"].device) + size * carry["turn"].long()
        index = places % len(self.public)
        batch = self.public.batch(index)

        def loss(params: Tree) -> tuple[Tensor, Tree]:
            logits = class_logits(self.task.logits(params, carry["buffers"], batch, training=False))
            return mismatch(logits, sent["consensus"][index], self.match, self.temperature), {}

        return gradient_and_value(loss, carry["params"])[0]

    def _of_kind(self, params: Tree, sent: Tree) -> Tree:
        """The parameters with the client's own network chosen: what a step did to the choice is undone."""
        if self.kinds == 1:
            return params
        return {
            **params,
            KIND: (torch.arange(self.kinds, device=sent["group"].device) == sent["group"]).to(params[KIND]),
        }

    def _masks(self, model: Tree, sent: Tree) -> Tree:
        widths = torch.tensor(self.widths, device=sent["group"].device)
        width = (widths * (torch.arange(len(widths), device=widths.device) == sent["group"])).sum()
        axes = {} if min(self.widths) == 1.0 else unit_axes(self.task.unit_layers())
        return {part: {k: unit_mask(x, axes.get(k, ()), width) for k, x in model[part].items()} for part in model}


def check_kinds(model: Model, kinds: int) -> None:
    """Refuse a model that has not as many networks as there are kinds of clients."""
    networks = len(model["params"][KIND]) if KIND in model["params"] else 1
    if networks == kinds:
        return
    if networks == 1:
        raise ConfigError(
            f"algorithm.kinds: {kinds} kinds of clients need as many networks. Use task.model = {{ name = 'one_of', "
            "of = [{ name = 'mlp' }, { name = 'linear' }] }."
        )
    raise ConfigError(f"algorithm.kinds: is {kinds}, and task.model has {networks} networks. Use kinds = {networks}.")
