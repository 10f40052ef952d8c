"""Some parameters stay with the client: what FedPer and FedBN share."""

from atoll import tree
from atoll.algorithms.local import difference, model_of
from atoll.core import Info, Model, Update
from atoll.errors import ConfigError
from atoll.tree import Tree


def known(model: Model, keep: list[str]) -> Model:
    """The model, if it has everything that is to be kept."""
    there = {**model["params"], **model["buffers"]}
    missing = [name for name in keep if name not in there]
    if missing:
        raise ConfigError(f"algorithm.keep: the model has no {missing[0]!r}. It has {', '.join(there)}.")
    return model


def client_part(model: Model, names: tuple[str, ...]) -> Tree:
    """The part of a model that stays with the client."""
    return {part: tree.select(entries, names) for part, entries in model_of(model).items()}


def joined(sent: Tree, own: Tree) -> Model:
    """What was sent, with the client's own part in place."""
    return {part: {**entries, **own[part]} for part, entries in model_of(sent).items()}


def shared_change(carry: Tree, sent: Tree, names: tuple[str, ...], info: Info) -> Update:
    """The change of everything that does not stay with the client."""
    new, old = ({p: tree.without(e, names) for p, e in model_of(m).items()} for m in (carry, sent))
    return Update(difference(new, old), info.examples)


def complete(mean: Tree, server: Tree) -> Tree:
    """The mean change, with no change for what was not sent."""
    delta = {**tree.zeros_like(server["params"]), **mean["delta"]}
    return {**mean, "delta": delta, "buffers": {**tree.zeros_like(server["buffers"]), **mean["buffers"]}}
