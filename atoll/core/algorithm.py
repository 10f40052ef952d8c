"""How many clients learn one model: seven hooks, in the order in which they run."""

from typing import Protocol

from atoll.core.task import Model
from atoll.core.types import Info, Total, Update
from atoll.tree import Tree


class Algorithm(Protocol):
    """State in, state out; written for ONE client: engines add the client axis.

    Two names are fixed. `server["params"]` and `server["buffers"]` are the model that central metrics measure;
    `carry["params"]` and `carry["buffers"]` are the model that a client itself predicts with, so that
    `start` gives what it has before local training and the last `step` what it has after.

    Class variables, all False unless set, say what is special: `personal` (a client predicts with a model of its
    own), `partial` (the server's model is not a whole one: central metrics are the mean over clients' models),
    `pooled` (all data in one place).
    """

    def init(self, model: Model) -> Tree:
        """The server's state before the first round."""
        ...

    def memory(self, model: Model) -> Tree:
        """What one client keeps between its rounds; {} for nothing."""
        ...

    def send(self, server: Tree) -> Tree:
        """What goes from the server to every client of the round."""
        ...

    def start(self, sent: Tree, memory: Tree) -> Tree:
        """What a client carries through its local steps."""
        ...

    def step(self, carry: Tree, sent: Tree, memory: Tree, batch: Tree) -> Tree:
        """One batch."""
        ...

    def finish(self, carry: Tree, sent: Tree, memory: Tree, info: Info) -> tuple[Update, Tree]:
        """What goes back to the server, and the client's new memory."""
        ...

    def apply(self, server: Tree, total: Total) -> Tree:
        """The server's next state."""
        ...
