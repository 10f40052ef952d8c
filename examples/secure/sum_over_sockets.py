"""A secure sum between processes, over TCP: six clients, one of them killed halfway, and the sum of the others.

    python examples/secure/sum_over_sockets.py --protocol secagg --clients 6 --kill 3

Every client is a process of its own with a vector of its own. The server's process adds nothing but what arrives; when
the protocol is halfway, it kills a client (SIGKILL) that has done its part so far. Any protocol of atoll.protocols will
do: `--protocol` takes a name below, or `module:Class`.
"""

import argparse
import multiprocessing
import os
import secrets
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import count

import torch
from torch import Tensor

from atoll import rng
from atoll.core import Client, Protocol, Server
from atoll.protocols import SecureAggregation, serve, take_part
from atoll.tree import Tree

PROTOCOLS = {
    "secagg": "atoll.protocols.secagg:SecAgg",
    "secagg_plus": "atoll.protocols.secagg_plus:SecAggPlus",
    "light_secagg": "atoll.protocols.light_secagg:LightSecAgg",
    "paillier": "atoll.protocols.paillier_aggregation:PaillierAggregation",
    "ckks": "atoll.protocols.ckks:CkksAggregation",
    "shuffle": "atoll.protocols.shuffle:SecureShuffle",
}


@dataclass(frozen=True)
class KilledHalfway(Protocol):
    """A protocol whose server kills a client's process before it sends its message of one step."""

    inner: SecureAggregation
    step: int
    pid: int

    def client(self, id: int, own: Tree, key: Tensor) -> Client:
        return self.inner.client(id, own, key)

    def server(self, ids: Sequence[int], key: Tensor) -> Server:
        server = self.inner.server(ids, key)
        outbox = next(server)
        for step in count():
            if step == self.step:
                os.kill(self.pid, signal.SIGKILL)
            try:
                outbox = server.send((yield outbox))
            except StopIteration as end:
                return end.value
        raise AssertionError

    def layout(self, message):
        return self.inner.layout(message)


def named(protocol: str) -> SecureAggregation:
    module, _, name = PROTOCOLS.get(protocol, protocol).partition(":")
    return getattr(import_module(module), name)()


def vector(id: int, numbers: int) -> Tensor:
    """What client `id` holds: known here, so that the sum can be compared."""
    return rng.bits(rng.key("vector", id), (numbers,)).long() & 0xFFFF_FFFF


def system_key() -> Tensor:
    """Not a seed of an experiment: each process draws its own."""
    return rng.key(secrets.randbits(48))


def client(protocol: str, id: int, numbers: int, address: tuple[str, int]) -> None:
    take_part(named(protocol), id, {"vector": vector(id, numbers)}, system_key(), address)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--protocol", default="secagg", help=f"one of {', '.join(PROTOCOLS)}, or module:Class")
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--numbers", type=int, default=1000, help="parameters of each vector")
    parser.add_argument("--kill", type=int, default=3, help="which client is killed; -1: nobody")
    parser.add_argument("--step", type=int, default=2, help="before which message of the server, from 0")
    parser.add_argument("--seconds", type=float, default=10.0, help="that a client has to answer")
    given = parser.parse_args()

    torch.set_num_threads(1)
    ids, protocol = list(range(given.clients)), named(given.protocol)
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()[:2]
    processes = [
        multiprocessing.get_context("fork").Process(
            target=client, args=(given.protocol, id, given.numbers, address), daemon=True
        )
        for id in ids
    ]
    for process in processes:
        process.start()
    pid = processes[given.kill].pid if given.kill >= 0 else 0
    watched = KilledHalfway(protocol, given.step if given.kill >= 0 else -1, pid)
    served = serve(watched, ids, system_key(), listener, seconds=given.seconds)
    for process in processes:
        process.join()

    survivors = served.result["ids"].tolist()
    expected = sum(vector(id, given.numbers) for id in survivors) & (1 << protocol.bits) - 1
    for id in ids:
        up, down = (counted.get(id, 0) for counted in (served.bytes_up, served.bytes_down))
        fate = served.lost.get(id, "stayed to the end")
        print(f"client {id}: process {processes[id].pid}, {up:,} bytes sent, {down:,} received; {fate}")
    print(f"in the sum: {survivors}")
    right = torch.equal(served.result["sum"], expected)
    print("the sum is that of their vectors" if right else "THE SUM IS WRONG")
    raise SystemExit(not right)


if __name__ == "__main__":
    main()
