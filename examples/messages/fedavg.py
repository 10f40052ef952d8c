"""FedAvg as workers that send messages: a server, its clients, and nothing but what is said between them.

    python examples/messages/fedavg.py                  # one process, virtual time
    python examples/messages/fedavg.py --processes      # a process for each, TCP on this machine
    python examples/messages/fedavg.py --processes --kill client-2

All three print the fingerprint of the last model; without --kill it is that of `atoll run`, to the last bit. A client
that is killed (kill -9, when round 2 reaches it) is missing from then on: the server goes on with the others.
"""

import argparse
import os
import signal
from dataclasses import dataclass, field
from functools import partial

from atoll import tree
from atoll.messages import ConnectionLimits, LocalTraining, Worker, WorkerTopology, answer, run, run_processes

EXPERIMENT = {
    "rounds": 3,
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 4, "alpha": 0.5},
    "cohort": {"name": "fixed", "size": 3},
    "task": {"model": "linear"},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "engine": "loop",
}
SECONDS_PER_STEP = 0.01  # of virtual time


@dataclass
class Server(Worker):
    """Broadcasts, waits for the cohort, takes the mean; and again."""

    training: LocalTraining
    number: int = 0
    state: tree.Tree = field(default_factory=dict)
    updates: dict[str, tree.Tree] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)

    def begin(self, post):
        self.state = self.training.first_state()
        self.ask(post)

    def handlers(self):
        return {"update": self.on_update}

    def cohort(self):
        return [f"client-{id}" for id in self.training.cohort(self.number)]

    def ask(self, post):
        broadcast = self.training.broadcast(self.number, self.state)
        for name in self.cohort():
            if name not in self.lost:
                post.send(name, "train", {"round": self.number, **broadcast})
        self.go_on(post)

    def on_update(self, post, mail):
        if int(mail.body["round"]) == self.number:  # one of an older round comes too late
            self.updates[mail.sender] = mail.body["trained"]
            self.go_on(post)

    def gone(self, post, name, why):
        self.lost.add(name)
        self.go_on(post)

    def go_on(self, post):
        if any(name not in self.updates and name not in self.lost for name in self.cohort()):
            return  # not all are there
        trained = self.training.joined([self.updates[name] for name in self.cohort() if name in self.updates])
        self.state = self.training.step(self.number, self.state, trained)
        self.number, self.updates = self.number + 1, {}
        if self.number < self.training.rounds:
            self.ask(post)
        else:
            for name in post.neighbours:
                if name not in self.lost:
                    post.send(name, "stop")
            post.end(self.training.model(self.state))


@dataclass
class Client(Worker):
    """Trains when it is asked to."""

    training: LocalTraining
    id: int
    dies_in: int | None = None

    def handlers(self):
        return {"train": self.on_train, "stop": lambda post, mail: post.end()}

    def on_train(self, post, mail):
        number = int(mail.body["round"])
        if self.dies_in is not None and number >= self.dies_in:
            os.kill(os.getpid(), signal.SIGKILL)
        trained = self.training.train(number, self.id, mail.body)
        post.spend(SECONDS_PER_STEP * self.training.steps(self.id))
        post.send(mail.sender, "update", {"round": number, "trained": answer(trained)})


def topology():
    clients = EXPERIMENT["partition"]["clients"]
    return WorkerTopology.star("server", [f"client-{id}" for id in range(clients)])


def make(name, training=None, killed=None):
    """One worker; in a process of its own it trains with what it makes there."""
    training = training or LocalTraining.of(EXPERIMENT)
    if name == "server":
        return Server(training)
    return Client(training, int(name.removeprefix("client-")), 1 if name == killed else None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", action="store_true", help="a process for each worker")
    parser.add_argument("--kill", help="which client's process is killed in round 2")
    given = parser.parse_args()
    if given.processes:
        limits = ConnectionLimits(patience=1.0)
        done = run_processes(partial(make, killed=given.kill), topology(), seconds=120, limits=limits)
    elif given.kill:
        parser.error("--kill needs --processes")
    else:
        training = LocalTraining.of(EXPERIMENT)
        done = run({name: make(name, training) for name in topology().names}, topology())
        print(f"{len(done.log)} messages, {done.bytes:,} bytes, {done.seconds:.2f} virtual seconds")
    for name, why in done.gone.items():
        print(f"{name}: {why}")
    print(f"model {tree.digest(done.results['server'])}")


if __name__ == "__main__":
    main()
