"""Gossip as workers that send messages: no server, every node trains and averages with its neighbours.

    python examples/messages/gossip.py [--processes]

Each node waits for the models of a round of all its neighbours; one that is a round ahead is kept until its turn. A
neighbour that is gone is replaced by the node's own model: its weight stays here.
"""

import argparse
from dataclasses import dataclass, field

import torch

from atoll import rng, tree
from atoll.algorithms import model_of
from atoll.core import Total
from atoll.messages import LocalTraining, Worker, WorkerTopology, run, run_processes
from atoll.rounds.decentralised import GRAPHS, mixing_of

EXPERIMENT = {
    "rounds": 3,
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 5, "alpha": 0.5},
    "task": {"model": "linear"},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "round": {"name": "gossip", "graph": "ring"},
    "engine": "loop",
}
RING = GRAPHS["ring"]().topology(EXPERIMENT["partition"]["clients"], 0)
WEIGHTS = mixing_of(RING, "metropolis").dense


@dataclass
class Node(Worker):
    """One client, and the server of its own update."""

    training: LocalTraining
    id: int
    number: int = 0
    server: tree.Tree = field(default_factory=dict)
    models: dict[int, dict[str, tree.Tree]] = field(default_factory=dict)  # by round and sender
    lost: set[str] = field(default_factory=set)

    def begin(self, post):
        self.server = tree.rows(self.training.first_state()["server"], self.id)
        self.train(post)

    def handlers(self):
        return {"model": self.on_model}

    def train(self, post):
        if self.id in self.training.cohort(self.number):
            self.server = self.stepped()
        post.spend(0.01 * self.training.steps(self.id))
        for name in post.neighbours:
            if name not in self.lost:
                post.send(name, "model", {"round": self.number, "model": model_of(self.server)})

    def stepped(self):
        """The server's half of the round, for an update of one's own."""
        ctx, key = self.training.context(self.number), self.training.key(self.number)
        sent = {"sent": ctx.algorithm.send(self.server), "view": {}}
        updates = self.training.train(self.number, self.id, sent).partial.updates
        value, weight = tree.rows(updates.value, 0), updates.weight[0]
        total = Total(tree.scale(value, weight), weight, torch.ones(()), invited=1)
        return ctx.algorithm.apply(self.server, total, rng.fold_name(rng.fold_name(key, "server"), "apply", self.id))

    def on_model(self, post, mail):
        self.models.setdefault(int(mail.body["round"]), {})[mail.sender] = mail.body["model"]
        self.go_on(post)

    def gone(self, post, name, why):
        self.lost.add(name)
        self.go_on(post)

    def go_on(self, post):
        while self.complete(post):  # the others may have been quicker
            self.server = {**self.server, **self.mixed(post, self.models.pop(self.number, {}))}
            self.number += 1
            if self.number == self.training.rounds:
                post.end(model_of(self.server))
                break
            self.train(post)

    def complete(self, post):
        models = self.models.get(self.number, {})
        return all(name in models or name in self.lost for name in post.neighbours)

    def mixed(self, post, models):
        """The round's own product, whose other rows have weight 0 here."""
        own = model_of(self.server)
        rows = {int(name.removeprefix("node-")): models.get(name, own) for name in post.neighbours} | {self.id: own}
        nothing = tree.zeros_like(own)
        stack = tree.map(lambda *xs: torch.stack(xs), *(rows.get(i, nothing) for i in range(len(WEIGHTS))))
        return tree.map(lambda x: torch.einsum("ij,j...->i...", WEIGHTS, x)[self.id], stack)


def topology():
    return WorkerTopology.ring([f"node-{id}" for id in range(len(WEIGHTS))])


def make(name, training=None):
    return Node(training or LocalTraining.of(EXPERIMENT), int(name.removeprefix("node-")))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", action="store_true", help="a process for each node")
    if parser.parse_args().processes:
        done = run_processes(make, topology(), seconds=120)
    else:
        training = LocalTraining.of(EXPERIMENT)
        done = run({name: make(name, training) for name in topology().names}, topology())
        print(f"{len(done.log)} messages, {done.bytes:,} bytes, {done.seconds:.2f} virtual seconds")
    for name, model in done.results.items():
        print(f"{name} {tree.digest(model)}")


if __name__ == "__main__":
    main()
