"""The virtual clock against reality: the same rounds between real processes over TCP on shaped links.

    sudo python benchmarks/clock_reality.py

Every client is a process in a network namespace of its own; so is the server. Between them is a link that carries
every packet of the kernel's TCP at a given rate and with a given delay: two TUN devices and a process that passes
packets on when they are due (what `tc netem rate ... delay ...` does, for kernels that are built without it). A round:
the server sends a model to all, each client waits as long as its steps take, and sends its update. The connection stays
open between rounds. Needs root, and cleans up after itself.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import multiprocessing as mp
import os
import select
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import numpy as np

from atoll.clock import Clock, Devices

DOWN, UP = 1_000_000, 500_000  # bytes: a model of 250,000 numbers, and an update of half of them
STEPS, SECONDS_PER_STEP = 20, 0.005
SLOWNESS = (1.0, 2.0)  # of each client
PAUSE = 4.0  # seconds between rounds, after which a connection is idle: its window has shrunk to what it begins with
PORT = 4711
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_ETHERNET = 14  # bytes that a frame has beside its packet
_QUEUE = 2000  # packets on a link, at most
_CLONE_NEWNET = 0x40000000


class Link(NamedTuple):
    mbps: float
    latency: float  # seconds, one way


def enter(name: str) -> None:
    """Go on in this network namespace."""
    with Path(f"/var/run/netns/{name}").open() as f:
        if ctypes.CDLL(None, use_errno=True).setns(f.fileno(), _CLONE_NEWNET):  # os.setns came with Python 3.12
            raise OSError(ctypes.get_errno(), f"cannot enter {name}")


def tun(namespace: str, device: str, address: str, peer: str) -> int:
    """A TUN device in a namespace, with an address."""
    enter(namespace)
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH", device.encode(), _IFF_TUN | _IFF_NO_PI))
    command = f"addr add {address} peer {peer} dev {device}", f"link set {device} mtu 1500 txqueuelen 5000 up"
    for words in (*command, "link set lo up"):
        subprocess.run(["ip", *words.split()], check=True)
    return fd


def carry(server: str, client: str, number: int, link: Link, ready: mp.synchronize.Event) -> None:
    """Pass packets on, both ways, when they are due: first the rate, then the delay."""
    ends = (
        tun(server, f"s{number}", f"10.9.{number}.1", f"10.9.{number}.2"),
        tun(client, f"c{number}", f"10.9.{number}.2", f"10.9.{number}.1"),
    )
    free, due = [0.0, 0.0], [[], []]  # type: ignore[var-annotated]
    poll = select.poll()
    for fd in ends:
        poll.register(fd, select.POLLIN)
    ready.set()
    while True:
        first = min((queue[0][0] for queue in due if queue), default=None)
        poll.poll(None if first is None else max(0, int(1000 * (first - time.monotonic()))))
        for way, fd in enumerate(ends):
            for packet in packets(fd):
                now = time.monotonic()
                free[way] = max(now, free[way]) + (len(packet) + _ETHERNET) * 8 / (link.mbps * 1e6)
                if len(due[way]) < _QUEUE:
                    due[way].append((free[way] + link.latency, packet))
        deliver(due, ends)


def packets(fd: int) -> Iterator[bytes]:
    with suppress(BlockingIOError):
        while True:
            yield os.read(fd, 2048)


def deliver(due: list[list[tuple[float, bytes]]], ends: tuple[int, int]) -> None:
    for way, queue in enumerate(due):
        now = time.monotonic()
        sent = 0
        while sent < len(queue) and queue[sent][0] <= now:
            with suppress(OSError):
                os.write(ends[1 - way], queue[sent][1])
            sent += 1
        del queue[:sent]


def serve(name: str, clients: int, rounds: int, pause: float, results: mp.Queue) -> None:
    """The server's side of all rounds: seconds of each, and timestamps of each client."""
    enter(name)
    listener = socket.create_server(("0.0.0.0", PORT))
    accepted = [listener.accept() for _ in range(clients)]
    connections = [c for c, _ in sorted(accepted, key=lambda pair: pair[1][0])]
    for connection in connections:
        usual_tcp(connection)
    model = os.urandom(DOWN)
    for _ in range(rounds):
        time.sleep(pause)  # what a server does between rounds
        stamps = [[0.0, 0.0, 0.0] for _ in connections]
        start = time.monotonic()
        pairs = zip(connections, stamps, strict=True)
        threads = [Thread(target=exchange, args=(c, model, stamp)) for c, stamp in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        results.put([[t - start for t in stamp] for stamp in stamps])


def exchange(connection: socket.socket, model: bytes, stamp: list[float]) -> None:
    connection.sendall(model)
    stamp[:2] = struct.unpack("dd", read(connection, 16))
    read(connection, UP - 16)
    stamp[2] = time.monotonic()


def work(name: str, number: int, rounds: int) -> None:
    """A client: receive, train (wait), send. The clock of the machine is one, so its timestamps are comparable."""
    enter(name)
    connection = socket.create_connection((f"10.9.{number}.1", PORT))
    usual_tcp(connection)
    update = os.urandom(UP - 16)
    for _ in range(rounds):
        read(connection, DOWN)
        received = time.monotonic()
        time.sleep(STEPS * SECONDS_PER_STEP * SLOWNESS[number])
        connection.sendall(struct.pack("dd", received, time.monotonic()) + update)


def usual_tcp(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")  # what most machines have


def read(connection: socket.socket, count: int) -> bytes:
    view = bytearray(count)
    at = 0
    while at < count:
        at += connection.recv_into(memoryview(view)[at:])
    return bytes(view)


@contextmanager
def namespaces(names: list[str]) -> Iterator[None]:
    made = []
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
            made.append(name)
        yield
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False)


def measure(link: Link, rounds: int, pause: float) -> np.ndarray:
    """Timestamps (rounds, clients, 3) in seconds since the round began; the first round is left out."""
    clients = len(SLOWNESS)
    server, *names = all_names = [f"atoll-{os.getpid()}-{i}" for i in range(clients + 1)]
    with namespaces(all_names):
        started, results = [], mp.Queue()
        for i, name in enumerate(names):
            ready = mp.Event()
            started.append(mp.Process(target=carry, args=(server, name, i, link, ready), daemon=True))
            started[-1].start()
            if not ready.wait(10):
                raise SystemExit("clock_reality: a link did not come up. Run it as root, on a kernel with TUN devices.")
        started.append(mp.Process(target=serve, args=(server, clients, rounds + 1, pause, results), daemon=True))
        started[-1].start()
        time.sleep(0.3)
        for i, name in enumerate(names):
            started.append(mp.Process(target=work, args=(name, i, rounds + 1), daemon=True))
            started[-1].start()
        try:
            return np.array([results.get(timeout=60) for _ in range(rounds + 1)])[1:]
        finally:
            for process in started:
                process.terminate()
                process.join()


def predict(link: Link) -> np.ndarray:
    """The same timestamps by the virtual clock, (clients, 3)."""
    n = len(SLOWNESS)
    columns = {"slowness": np.array(SLOWNESS), "up_mbps": np.full(n, link.mbps), "down_mbps": np.full(n, link.mbps)}
    clock = Clock(Devices(trace={**columns, "latency_ms": np.full(n, 1000 * link.latency)}), SECONDS_PER_STEP)
    line = clock.timeline(0, np.arange(n), np.full(n, STEPS), DOWN, UP, 0.0)
    return np.stack([line.received, line.sent, line.arrived], 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pause", type=float, default=PAUSE, help="seconds between rounds")
    options = parser.parse_args()
    rounds, pause = options.rounds, options.pause
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))  # other work on this machine must not delay packets
    worst = 0.0
    print("  Mbit/s   ms | down: s, predicted | up: s, predicted | round: s, predicted, error")
    for mbps in (10, 30, 100):
        for latency in (0.0, 0.05):
            measured, predicted = (
                np.median(measure(Link(mbps, latency), rounds, pause), 0),
                predict(Link(mbps, latency)),
            )
            whole, expected = measured[:, 2].max(), predicted[:, 2].max()
            error = expected / whole - 1
            worst = max(worst, abs(error))
            down, up = measured[0, 0], measured[0, 2] - measured[0, 1]
            down_said, up_said = predicted[0, 0], predicted[0, 2] - predicted[0, 1]
            print(
                f"{mbps:8} {latency * 1e3:4.0f} | {down:7.3f} {down_said:10.3f} | {up:6.3f} {up_said:9.3f} | "
                f"{whole:7.3f} {expected:10.3f} {error:+7.1%}",
                flush=True,
            )
    print(f"worst error of a round: {worst:.1%}")
    raise SystemExit(int(worst > 0.1))


if __name__ == "__main__":
    main()
