"""A hierarchy as workers that send messages: clients, edges that add up what their clients send, and a root.

    python examples/messages/hierarchical.py [--processes]

An edge passes the broadcast down and one partial sum up, so that the root receives as many messages as there are edges.
An edge that is gone takes its clients with it; a client that is gone is missing from its edge's sum.
"""

import argparse
from dataclasses import dataclass, field

from atoll import tree
from atoll.messages import LocalTraining, Worker, WorkerTopology, answer, run, run_processes

EXPERIMENT = {
    "rounds": 3,
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.5},
    "task": {"model": "linear"},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "engine": "loop",
}
EDGES = {"edge-0": ["client-0", "client-1"], "edge-1": ["client-2", "client-3", "client-4"], "edge-2": ["client-5"]}


@dataclass
class Above(Worker):
    """Whoever waits for those below: all of a round, in their order, without who is gone."""

    training: LocalTraining
    below: list[str]
    number: int = 0
    answers: dict[str, tree.Tree] = field(default_factory=dict)
    waits: bool = False

    def handlers(self):
        return {"sum": self.on_sum}

    def pass_down(self, post, broadcast):
        self.answers, self.waits = {}, True
        for name in self.below:
            post.send(name, "train", {"round": self.number, **broadcast})
        self.check(post)

    def on_sum(self, post, mail):
        if int(mail.body["round"]) == self.number:
            self.answers[mail.sender] = mail.body["trained"]
            self.check(post)

    def gone(self, post, name, why):
        self.below = [other for other in self.below if other != name]
        self.check(post)

    def check(self, post):
        if self.waits and all(name in self.answers for name in self.below):
            self.waits = False
            self.complete(post, self.training.joined([self.answers[name] for name in self.below]))

    def stop(self, post):
        for name in self.below:
            post.send(name, "stop")


@dataclass
class Root(Above):
    """Holds the model."""

    state: tree.Tree = field(default_factory=dict)

    def begin(self, post):
        self.state = self.training.first_state()
        self.pass_down(post, self.training.broadcast(0, self.state))

    def complete(self, post, trained):
        self.state = self.training.step(self.number, self.state, trained)
        self.number += 1
        if self.number < self.training.rounds:
            return self.pass_down(post, self.training.broadcast(self.number, self.state))
        self.stop(post)
        return post.end(self.training.model(self.state))


@dataclass
class Edge(Above):
    """Adds up, and applies nothing."""

    def handlers(self):
        return {**super().handlers(), "train": self.on_train, "stop": self.on_stop}

    def on_train(self, post, mail):
        self.number = int(mail.body["round"])
        self.pass_down(post, {name: mail.body[name] for name in ("sent", "view")})

    def complete(self, post, trained):
        post.send("root", "sum", {"round": self.number, "trained": answer(trained)})

    def on_stop(self, post, mail):
        self.stop(post)
        post.end()


@dataclass
class Client(Worker):
    """Trains when it is asked to."""

    training: LocalTraining
    id: int

    def handlers(self):
        return {"train": self.on_train, "stop": lambda post, mail: post.end()}

    def on_train(self, post, mail):
        number = int(mail.body["round"])
        trained = self.training.train(number, self.id, mail.body)
        post.spend(0.01 * self.training.steps(self.id))
        post.send(mail.sender, "sum", {"round": number, "trained": answer(trained)})


def topology(edges=EDGES):
    return WorkerTopology.tree({"root": list(edges), **edges})


def make(name, training=None, edges=EDGES):
    training = training or LocalTraining.of(EXPERIMENT)
    if name == "root":
        return Root(training, list(edges))
    return Edge(training, edges[name]) if name in edges else Client(training, int(name.removeprefix("client-")))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", action="store_true", help="a process for each worker")
    if parser.parse_args().processes:
        done = run_processes(make, topology(), seconds=120)
    else:
        training = LocalTraining.of(EXPERIMENT)
        done = run({name: make(name, training) for name in topology().names}, topology())
        print(f"{len(done.log)} messages, {done.bytes:,} bytes, {done.seconds:.2f} virtual seconds")
    print(f"model {tree.digest(done.results['root'])}")


if __name__ == "__main__":
    main()
