"""Secure aggregation as workers that send messages: the protocol's own generators, asked and answered by mail.

    python examples/messages/secagg.py [--processes] [--protocol secagg_plus]

Clients train, and SecAgg adds up what they have: the server sees masked vectors and their sum. A client that is gone is
missing from the protocol's inbox from then on, which the protocol bears as long as enough are left.
"""

import argparse
from dataclasses import dataclass, field
from functools import partial

import torch

from atoll import rng, tree
from atoll.core import Columns, Message, Total, Trained
from atoll.messages import LocalTraining, Worker, WorkerTopology, run, run_processes
from atoll.reducers import Mean

CLIENTS = 5
DOWN, UP = ("start", "peers", "boxes", "unmask"), ("keys", "shares", "masked", "revealed")  # SecAgg's messages


def experiment(protocol="secagg"):
    return {
        "rounds": 2,
        "data": "digits",
        "partition": {"name": "iid", "clients": CLIENTS},
        "task": {"model": "linear"},
        "algorithm": {"name": "fedavg", "lr": 0.1},
        "transform": ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}],
        "secure": {"protocol": protocol},
        "engine": "loop",
    }


@dataclass
class Party(Worker):
    """What both sides have: something to train with, and one side of the protocol."""

    training: LocalTraining
    number: int = 0
    generator: object = None

    @property
    def protocol(self):
        return self.training.setup.round.summation.protocol

    @property
    def key(self):
        return rng.fold_name(self.training.key(self.number), "reduce")


@dataclass
class Server(Party):
    """Broadcasts, then drives the protocol's server: an outbox is sent, an inbox is what came back."""

    state: tree.Tree = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    inbox: dict[str, Message] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)

    def begin(self, post):
        self.state = self.training.first_state()
        self.broadcast(post)

    def handlers(self):
        return dict.fromkeys(("trained", *UP), self.on_answer)

    def broadcast(self, post):
        broadcast, names = self.training.broadcast(self.number, self.state), post.neighbours
        self.generator = None
        self.ask(post, dict.fromkeys(names, Message("train", {"round": torch.tensor(self.number), **broadcast})))

    def ask(self, post, outbox):
        self.asked, self.inbox = [name for name in outbox if name not in self.lost], {}
        for name in self.asked:
            post.send(name, outbox[name].kind, outbox[name].body, self.protocol.layout(outbox[name]))

    def on_answer(self, post, mail):
        self.inbox[mail.sender] = Message(mail.kind, mail.body)
        self.go_on(post)

    def gone(self, post, name, why):
        self.lost.add(name)
        self.go_on(post)

    def go_on(self, post):
        if any(name not in self.inbox and name not in self.lost for name in self.asked):
            return
        inbox = {int(name.removeprefix("client-")): message for name, message in self.inbox.items()}
        try:
            if self.generator is None:
                self.generator = self.protocol.server(sorted(inbox), rng.fold_name(self.key, "server"))
                inbox = None
            outbox = self.generator.send(inbox)
            self.ask(post, {f"client-{id}": message for id, message in outbox.items()})
        except StopIteration as end:
            self.apply(post, end.value)

    def apply(self, post, result):
        """The sum as the update that it was; of each client the server knows only that it is in it."""
        n, like = len(result["ids"]), self.training.context(self.number).program.like
        pieces = iter(result["sum"].double().split([x.numel() for x in tree.leaves(like)]))
        value = tree.map(lambda x: next(pieces).reshape(x.shape), like)
        total, one = Total(value, torch.tensor(float(n)), torch.tensor(float(n))), torch.ones(n)
        trained = Trained.settled(total, one, Columns(0 * one, one.bool(), torch.arange(n)))
        self.state = self.training.step(self.number, self.state, trained, Mean())
        self.number += 1
        if self.number < self.training.rounds:
            self.broadcast(post)
        else:
            self.finish(post)

    def finish(self, post):
        for name in post.neighbours:
            if name not in self.lost:
                post.send(name, "stop")
        post.end(self.training.model(self.state))


@dataclass
class Client(Party):
    """Trains when it is asked to; what follows goes to the protocol's client."""

    id: int = 0

    def handlers(self):
        own = {"train": self.on_train, "stop": lambda post, mail: post.end()}
        return {**own, **dict.fromkeys(DOWN, self.on_message)}

    def on_train(self, post, mail):
        self.number = int(mail.body["round"])
        residues = self.training.train(self.number, self.id, mail.body).partial.updates.value
        vector = torch.cat([x[0].flatten() for x in tree.leaves(residues)])
        self.generator = self.protocol.client(self.id, {"vector": vector}, rng.fold_host(self.key, self.id))
        next(self.generator)
        post.send(mail.sender, "trained")

    def on_message(self, post, mail):
        reply = self.generator.send(Message(mail.kind, mail.body))
        post.send(mail.sender, reply.kind, reply.body, self.protocol.layout(reply))


def topology():
    return WorkerTopology.star("server", [f"client-{id}" for id in range(CLIENTS)])


def make(name, training=None, protocol="secagg"):
    training = training or LocalTraining.of(experiment(protocol))
    return Server(training) if name == "server" else Client(training, id=int(name.removeprefix("client-")))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", action="store_true", help="a process for each worker")
    parser.add_argument("--protocol", default="secagg", choices=("secagg", "secagg_plus"))
    given = parser.parse_args()
    if given.processes:
        done = run_processes(partial(make, protocol=given.protocol), topology(), seconds=120)
    else:
        training = LocalTraining.of(experiment(given.protocol))
        done = run({name: make(name, training) for name in topology().names}, topology())
        print(f"{len(done.log)} messages, {done.bytes:,} bytes")
    print(f"model {tree.digest(done.results['server'])}")


if __name__ == "__main__":
    main()
