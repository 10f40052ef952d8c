"""How many clients learn one model: seven hooks, in the order in which they run."""

from typing import Protocol

from torch import Tensor

from atoll.core.task import Model
from atoll.core.traits import Traits
from atoll.core.types import Info, Total, Update
from atoll.tree import Tree


class Algorithm(Protocol):
    """State in, state out; written for ONE client: engines add the client axis.

    Two names are fixed. `server["params"]` and `server["buffers"]` are the model that central metrics measure;
    `carry["params"]` and `carry["buffers"]` are the model that a client itself predicts with, so that
    `start` gives what it has before local training and the last `step` what it has after.
    """

    def traits(self) -> Traits:
        """What is special about it; `Traits()` for nothing."""
        ...

    def init(self, model: Model, key: Tensor) -> Tree:
        """The server's state before the first round; `key` is for what it draws."""
        ...

    def client_state(self, model: Model) -> Tree:
        """What one client keeps between its rounds; {} for nothing."""
        ...

    def send(self, server: Tree) -> Tree:
        """What is broadcast to every client of the round."""
        ...

    def start(self, sent: Tree, own: Tree) -> Tree:
        """What a client carries through its local steps; `own` is its client state."""
        ...

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        """One batch."""
        ...

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        """What goes back to the server, and the client's new state."""
        ...

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        """The server's next state; `key` is this round's, for what the server draws."""
        ...


def missing_hooks(thing: object) -> list[str]:
    """What an algorithm must have and this does not: for errors that say so before the first round.

    >>> missing_hooks(object())[:2]
    ['traits', 'init']
    """
    return [name for name in vars(Algorithm) if name[0] != "_" and not callable(getattr(thing, name, None))]
