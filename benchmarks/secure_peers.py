"""SecAgg+ of Atoll and of Flower on the same job, one after the other: seconds of a round, processor seconds, bytes.

    python benchmarks/secure_peers.py [--clients 10 32] [--numbers 10000 100000 1000000] [--rounds 3]
                                      [--flower PYTHON] [--json duel.json]

The job: client i holds the numbers sin(i + j) as float32, the mean over all clients must come out. Modulus 2^32,
neighbours and threshold as Atoll's SecAgg+ chooses them for so many clients, the same for Flower. Both sides turn
floats into residues with random rounding, and every message becomes bytes and is read from them again.

Flower runs twice: in its simulation on Ray, one core per client, as its users run it (seconds of the median round but
the first, which starts the workers), and its client and server code alone in one process, without Ray. Atoll runs in
one process. PYTHON is an interpreter with flwr; without it, the one of `benchmarks/peers.py` is made and kept.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from atoll import rng
from atoll.core import Update
from atoll.protocols import SecAggPlus, run_protocol
from atoll.transforms import FixedPoint, SecureSum

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peers"))
BITS = 32
HEAD = "clients | numbers | who | s a round | processor s a round | client, processor s | bytes up | bytes down | error"


def held(client: int, numbers: int) -> torch.Tensor:
    return torch.sin(client + torch.arange(numbers, dtype=torch.float32))


def atoll_rounds(clients: int, numbers: int, rounds: int) -> dict[str, Any]:
    """Floats to residues, the protocol with every message as bytes, and back to a mean; the first round warms up."""
    step = 2.0 ** (clients.bit_length() + 1 - BITS)  # twice the room that sums of numbers within 1 need
    to_steps, to_residues = FixedPoint(step), SecureSum(BITS)
    found: dict[str, Any] = {"seconds": [], "cpu": [], "client_cpu": [], "rounding_cpu": [], "up": [], "down": []}
    floats = {i: held(i, numbers) for i in range(clients)}
    for number in range(rounds + 1):
        began, before = time.process_time(), time.perf_counter()
        own = {}
        for i, x in floats.items():
            key = rng.fold_host(rng.key("duel", number), i)
            update, _ = to_steps.client(Update({"x": x}, torch.tensor(1.0)), {}, {}, key)
            update, _ = to_residues.client(update, {}, {}, key)
            own[i] = {"vector": update.value["x"].long()}
        prepared = time.process_time() - began
        result, log = run_protocol(
            SecAggPlus(bits=BITS), own, rng.key("round", number), over_wire=True, keep_messages=False
        )
        half = 1 << (BITS - 1)
        mean = ((result["sum"] + half) % (2 * half) - half).double() * step / clients
        if number:
            found["cpu"].append(time.process_time() - began)
            found["seconds"].append(time.perf_counter() - before)
            spent = sum(sum(one.values()) for one in log.client_seconds)
            found["client_cpu"].append((prepared + spent) / clients)
            found["rounding_cpu"].append(prepared / clients)
            for way, steps in (("up", log.up_bytes), ("down", log.down_bytes)):
                found[way].append(sum(sum(one.values()) for one in steps) / clients)
    right = torch.stack([x.double() for x in floats.values()]).mean(0)
    return {**found, "error": float((mean - right).abs().max())}


def flower_rounds(python: Path, clients: int, numbers: int, rounds: int, *more: str) -> dict[str, Any]:
    """Runs beside Atoll's environment, in Flower's own. The first round is left out: Ray starts its workers in it."""
    graph = SecAggPlus(bits=BITS).graph(clients)
    options = ["--shares", graph.degree + 1, "--threshold", graph.threshold, "--rounds", rounds + 1, *more]
    command = [python, HERE / "peers" / "flower" / "secure.py", clients, numbers, *options]
    env = {**os.environ, "PYTHONPATH": "", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=env)
    if done.returncode:
        sys.exit(f"Flower ended with {done.returncode}:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return {name: value[1:] if isinstance(value, list) else value for name, value in found.items()}


def row(clients: int, numbers: int, who: str, found: dict[str, Any]) -> str:
    middle = {name: median(values) for name, values in found.items() if isinstance(values, list) and values}
    seconds = [f"{middle[name]:.3f}" if name in middle else "" for name in ("seconds", "cpu", "client_cpu")]
    sizes = [f"{middle[name]:,.0f}" if name in middle else "" for name in ("up", "down")]
    return "| " + " | ".join([f"{clients}", f"{numbers:,}", who, *seconds, *sizes, f"{found['error']:.1e}"]) + " |"


def interpreter(given: Path | None) -> Path:
    if given is not None:
        return given
    from environment import environment

    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "atoll" / "peers"
    cache.mkdir(parents=True, exist_ok=True)
    made = environment("flower", HERE / "peers" / "flower" / "requirements.txt", cache)
    return Path(made["python"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 32])
    parser.add_argument("--numbers", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flower", type=Path, help="an interpreter that has flwr")
    parser.add_argument("--json", type=Path, help="write all rounds of all runs there")
    given = parser.parse_args()
    python, kept = interpreter(given.flower), []
    torch.set_num_threads(1)
    print(f"| {HEAD} |\n|{'---|' * (HEAD.count('|') + 1)}", flush=True)
    for clients in given.clients:
        for numbers in given.numbers:
            size = (clients, numbers, given.rounds)
            runs = {
                "Atoll": lambda size=size: atoll_rounds(*size),
                "Flower, in one process": lambda size=size: flower_rounds(python, *size, "--direct"),
                "Flower, its simulation": lambda size=size: flower_rounds(python, *size),
            }
            for who, run in runs.items():
                found = run()
                print(row(clients, numbers, who, found), flush=True)
                kept.append({"clients": clients, "numbers": numbers, "who": who, **found})
    if given.json is not None:
        given.json.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
