"""What a round is: a generator that asks for work and is answered.

Everything between "a round begins" and "a round is recorded" stands in `Round.run`. Whoever drives it answers: one
engine, a scheduler that answers several runs with one stack, ranks, a network.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from atoll import tree
from atoll.clock import Clock, Floats, Overhead, Timeline
from atoll.core.algorithm import Algorithm
from atoll.core.reducer import Reducer
from atoll.core.requests import Columns, Program, Request, Train
from atoll.core.round_traits import RoundTraits
from atoll.core.summation import Summation
from atoll.core.task import Model, Task
from atoll.core.transform import Transform
from atoll.core.types import Participation
from atoll.errors import ConfigError
from atoll.tree import Tree
from atoll.wire import wire_bytes

PLAYED_ROUNDS = 1000  # of a forecast that goes round by round; more are reckoned from these


class Traffic(NamedTuple):
    """Bytes on the wire in a round, as `wire` encodes them, headers included."""

    up: int | None  # None: what clients sent depends on their numbers, and `Columns.upload` has it
    down: int
    wasted: int = 0  # up, by clients that do not count; or between servers


@dataclass(frozen=True, eq=False)
class Context:
    """What one round of one run is made of."""

    number: int  # counted from 0
    program: Program  # the templates, the same in every round
    settings: Tree  # this round's numbers, for the clients
    algorithm: Algorithm  # with this round's numbers, for the server
    chain: Transform  # bound, with this round's numbers, for the server; perhaps with more around it
    population: int  # clients
    update_like: Tree  # zeros in the shape of one client's update, before the transforms
    upload_bytes: int | None  # of one update on the wire; None where that depends on its numbers
    sample: Callable[[], tuple[Tensor, Participation]]  # who takes part, and how they were drawn
    order: Tensor  # key: what the order of clients' examples is drawn from
    row_table: int = 0  # which of the population's tables of rows clients read
    task: Task | None = None  # what is learned; None where nobody who runs the round knows

    def train(self, sent: Tree, state: Tree, ids: Tensor, key: Tensor, **more: Any) -> Train:
        """A request for this round's program."""
        return Train(self.program, self.settings, sent, state, ids, key, self.order, row_table=self.row_table, **more)

    def traffic(self, clients: int, sent: Tree) -> Traffic:
        """Of so many clients, each of which was sent this."""
        up = None if self.upload_bytes is None else clients * self.upload_bytes
        return Traffic(up, clients * wire_bytes(sent))


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a round says of itself, beside its new state."""

    ids: Tensor  # (C,) who was asked, and was not lost or late
    participation: Participation
    examples: Tensor  # (C,) of each
    columns: Callable[[], Columns]  # one entry for each client; asking waits for a device
    traffic: Traffic
    changed: bool = True  # False: nobody contributed, so the server stays as it was
    diagnostics: Tree = field(default_factory=dict)  # of the reducer, the transforms and the algorithm
    timeline: Timeline | None = None  # in virtual time, of all who were asked; None without a clock
    downloads: Tensor | None = None  # (C,) bytes that each was sent, where they depend on numbers

    def uploads(self) -> Tensor:
        """(C,) bytes that each client sent, where they depend on its numbers; else nothing."""
        upload = self.columns().upload
        return torch.zeros(0, dtype=torch.int64) if upload is None else upload

    def timeline_as_sent(self) -> Timeline | None:
        """The timeline with the lengths that messages of those who count really had; asking waits for a device.

        Those of a protocol are what its cost model says.
        """
        line = self.timeline
        if line is None or line.overhead is not None:
            return line
        up, n = self.uploads() if self.traffic.up is None else torch.zeros(0), len(self.ids)
        down = None if self.downloads is None else self.downloads.cpu().numpy()
        return line.with_lengths(self.ids.cpu().numpy(), down, up.cpu().numpy() if len(up) == n else None)

    def bytes(self) -> dict[str, int]:
        """Of all clients, up and down."""
        up = int(self.uploads().sum()) if self.traffic.up is None else self.traffic.up
        return {"up": up + self.traffic.wasted, "down": self.traffic.down}


S = TypeVar("S")  # a sampler of cohorts
Play: TypeAlias = Generator[Request, Any, tuple[Tree, Outcome]]


class Round(ABC):
    """A topology: who talks to whom. `state` is a tree with all that lives on between rounds, so it checkpoints.

    A round with a server keeps `{"server", "chain", "reducer"}` in it, and whatever else it needs.
    """

    def traits(self) -> RoundTraits:
        """What is special about it."""
        return RoundTraits()

    def reducer(self, named: Reducer[Any]) -> Reducer[Any]:
        """The reducer that engines use; a ConfigError for a named one that this round would not use."""
        return named

    def for_task(self, task: Task, model: Model) -> Round:
        """This round for what is learned: itself, unless it must know more of the model; may refuse that."""
        return self

    def check(self, algorithm: Algorithm) -> None:
        """Refuse (ConfigError) an algorithm that cannot run in this round."""

    def check_population(self, population: int) -> None:
        """Refuse (ConfigError) so many clients, if this round cannot be made of them."""

    def check_cohort(self, clients: int) -> None:
        """Refuse (ConfigError) cohorts of so many, where their size is fixed."""

    def facts(self, population: int) -> dict[str, Any]:
        """What run.json says of the topology: {"topology": ...}, or nothing."""
        return {}

    def in_virtual_time(self, clock: Clock, steps: Callable[[Tensor], Tensor]) -> Round | None:
        """This round timed by a clock, where it knows better than a server that sends to all and waits; else None.

        `steps` are those of each of these clients in a round.
        """
        return None

    def parties(self, level: int, drawn: int | None) -> int | None:
        """How many are in one sum at most: of clients (level 0), where so many are drawn, or of edges of a level.

        None: there is no such number. A ConfigError for a level that is not there.
        """
        if level:
            raise ConfigError(
                f"secure.level: {level} is a level of edges, and in this round clients report to the server. Leave "
                "level out, or use round.name = 'hierarchical'."
            )
        return drawn

    def summed_by(self, summation: Summation, level: int) -> Round | None:
        """This round with its sums made so, where it knows better than one cohort that is drawn before; else None.

        `level`: whose sums, as `parties` has it.
        """
        return None

    def before_sums(self) -> tuple[Transform, ...]:
        """What clients do to their updates where the server sees sums alone: else this round's reducer does it."""
        return ()

    def check_untimed(self) -> None:
        """Refuse (ConfigError) a run without [clock], where time decides what this round does."""

    def sampler(self, named: S) -> S:
        """Who says for this round who may be asked, and how those in a sum were drawn: the named one, or one around."""
        return named

    def most_at_once(self, asked: int) -> int:
        """How many clients one of its requests trains at most, where so many are drawn."""
        return asked

    def forecast(self, first: Timeline, pools: Callable[[int], Tensor], rounds: int) -> list[Timeline] | None:
        """So many rounds in virtual time, without training, with the messages of the first; None: `timed` plays them.

        `pools`: who is drawn in a round.
        """
        return None

    def total_bytes(
        self, ctx: Context, state: Tree, first: Outcome, pools: Callable[[int], Tensor], rounds: int
    ) -> dict[str, int]:
        """Bytes up and down of so many rounds, without training, where a first one from this state was like that.

        At most, where lengths depend on numbers. `pools`: who is drawn in a round, or who of them counts; here a round
        takes as many bytes as clients are in it.
        """
        played = min(rounds, PLAYED_ROUNDS)
        sizes = [len(pools(number)) for number in range(played)]
        clients = sum(sizes) * rounds / played
        if not len(first.ids):
            down, up = self.message_bytes(ctx, state, torch.zeros(1, dtype=torch.int64))
            return {"up": round(clients * float(np.mean(up))), "down": round(clients * float(np.mean(down)))}
        sent: float | None = first.traffic.up
        if sent is None:
            sent = float(np.broadcast_to(self.message_bytes(ctx, state, first.ids)[1], len(first.ids)).sum())
        total = {"up": sent + first.traffic.wasted, "down": first.traffic.down}
        return {way: round(n * clients / (sizes[0] or len(first.ids))) for way, n in total.items()}

    def lengths_vary(self, ctx: Context, state: Tree) -> bool:
        """Does it depend on its numbers how long a message is, so that `message_bytes` is a bound?"""
        return ctx.upload_bytes is None

    @abstractmethod
    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        """The state before the first round."""

    @abstractmethod
    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        """One round: yields requests, returns the new state and an `Outcome`. Pure: drivers may play it again."""

    def begun(self, state: Tree, seconds_per_step: Callable[[], float]) -> Tree:
        """The first state of a new run, once there is an engine: `seconds_per_step` times it, if asked."""
        return state

    def overhead(self, ctx: Context, state: Tree, ids: Tensor) -> Overhead | None:
        """What a protocol around these clients' updates would take now; None without one."""
        return None

    def message_bytes(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[float | Floats, float | Floats]:
        """Bytes of the message to each of these clients, and of the one from it; (C,) where they differ.

        At most, where that depends on its numbers.
        """
        sent, _ = self.broadcast(ctx, state, ids)
        one = tree.rows(sent, 0) if self.traits().sends_rows and len(ids) else sent
        return float(wire_bytes(one)), float(ctx.program.upload.most_bytes)

    def after(self, ctx: Context, state: Tree, ids: Tensor) -> Tree:
        """The state after a round with these clients, as far as sizes of later messages depend on it, for forecasts."""
        return state

    def timed(self, ctx: Context, state: Tree, key: Tensor) -> tuple[Timeline, Tree] | None:
        """A round in virtual time, without training: its timeline, and the state as far as later ones depend on it."""
        return None

    def model(self, state: Tree) -> Model:
        """The model that central metrics measure: the server's, unless there is none."""
        return {"params": state["server"]["params"], "buffers": state["server"]["buffers"]}

    def beside(self, state: Tree) -> dict[str, Model]:
        """Other models of the server by name, measured on the test data and saved like the first: an average, say."""
        return {}

    def ensembles(self, state: Tree) -> dict[str, Model]:
        """Stacks of models by name, each measured on the test data as one: by the mean of its models' probabilities."""
        return {}

    def broadcast(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[Tree, Tree]:
        """What these clients would be sent now, and the chain's state as they see it: rows with `sends_rows`."""
        return ctx.algorithm.send(state["server"]), ctx.chain.client_view(state["chain"])
