"""Messages per second between two workers: in one process over virtual time, and over TCP on this machine.

    python benchmarks/messages.py [--messages 2000] [--numbers 10 100000]

A ping-pong: each message is the answer to the last, so that this is latency, not what a line can carry. Both ways
encode and decode every message. The last column is the ratio of the two, measured in one run.
"""

import argparse
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import torch

from atoll.messages import AddressList, Worker, WorkerTopology, run, run_worker

PAIR = WorkerTopology.complete(["a", "b"])


class Player(Worker):
    """Sends back what comes, until it has done so often enough."""

    def __init__(self, left: int, numbers: int, serves: bool) -> None:
        self.left, self.ball, self.serves = left, torch.zeros(numbers), serves

    def begin(self, post):
        if self.serves:
            post.send_all("ball", {"w": self.ball})

    def handlers(self):
        return {"ball": self.on_ball}

    def gone(self, post, name, why):
        post.end()

    def on_ball(self, post, mail):
        self.left -= 1
        post.send(mail.sender, "ball", mail.body)
        if not self.left:
            post.end()


def players(messages: int, numbers: int) -> dict[str, Player]:
    return {name: Player(messages // 2, numbers, name == "a") for name in PAIR.names}


def in_process(messages: int, numbers: int) -> float:
    began = time.perf_counter()
    run(players(messages, numbers), PAIR, most_events=10 * messages)
    return messages / (time.perf_counter() - began)


def over_loopback(messages: int, numbers: int) -> float:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(2) as pool:
        addresses = AddressList({"a": listener.getsockname()[:2]})
        began = time.perf_counter()
        ends = [
            pool.submit(run_worker, name, player, PAIR, addresses, listener=listener if name == "a" else None)
            for name, player in players(messages, numbers).items()
        ]
        seconds = max(end.result().seconds for end in ends)
        assert seconds <= time.perf_counter() - began
    return messages / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--numbers", type=int, nargs="+", default=[10, 100_000], help="float32 numbers of each")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'numbers':>10} {'in process /s':>14} {'loopback /s':>12} {'ratio':>6}")
    for numbers in given.numbers:
        here, there = (how(given.messages, numbers) for how in (in_process, over_loopback))
        print(f"{numbers:>10,} {here:>14,.0f} {there:>12,.0f} {here / there:>6.1f}")


if __name__ == "__main__":
    main()
