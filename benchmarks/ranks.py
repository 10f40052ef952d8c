"""Straggler seconds: clients scheduled by cost against clients dealt out in turn, on very uneven clients.

    python benchmarks/ranks.py [--ranks 2] [--rounds 12] [--clients 64] [--sigma 1.5] [--engine loop] [--device cpu]

Starts its own processes, one for each rank, on this machine. Sizes are log-normal. The two schedules take turns, round
by round in the same processes, so that what else the machine does falls on both. A straggler's seconds are what the
slowest rank took to train beyond the mean of all ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import multiprocessing, nn
from torch.distributed import TCPStore

from atoll.data import Dataset, Partition
from atoll.engines.ranks import Ranked, Schedule, greedy, in_turn, join
from atoll.experiment import Experiment, assemble, find_device
from atoll.records import RunFolder
from atoll.runs import RunLoop, hardware
from atoll.tasks import MODELS

SCHEDULES: dict[str, Schedule] = {"in turn": in_turn, "by cost": greedy}


def uneven(options: argparse.Namespace, folder: Path) -> RunLoop:
    """A run of FedAvg on uneven clients, on this rank."""
    sizes = np.random.default_rng(0).lognormal(4.0, options.sigma, options.clients).clip(1, 20_000).astype(int)
    torch.manual_seed(0)
    x, y = torch.randn(int(sizes.sum()), *options.inputs), torch.randint(0, 10, (int(sizes.sum()),))
    model: nn.Module = MODELS[options.model](inputs=tuple(options.inputs), outputs=10)
    experiment = Experiment.parse(
        {
            "rounds": 1_000_000,
            "data": {"name": "atoll.runs.python_inputs:arrays", "digest": "benchmark"},
            "local": {"batch": 16},
            "cohort": {"name": "fixed", "size": max(1, options.clients // 2)},
            "algorithm": {"name": "fedavg", "lr": 0.01},
            "engine": options.engine,
            "evaluate": {"every": 1_000_000, "clients": 0},
        }
    )
    ends = np.cumsum(sizes)
    partition = Partition.from_lists([torch.arange(e - s, e) for s, e in zip(sizes, ends, strict=True)])
    world = join().on_device(find_device(options.device))
    files = RunFolder(folder)
    if world.rank == 0:
        files.create(0)
    setup = assemble(experiment, Dataset.from_arrays(x, y), partition, model, options.device)
    return RunLoop(setup, files, world=world)


def work(rank: int, port: int, options: argparse.Namespace, folder: Path) -> None:
    """One rank: warm up, then both schedules in turns."""
    size = options.ranks
    names = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ.update({k: str(v) for k, v in names.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", TORCHELASTIC_USE_AGENT_STORE="True")
    run = uneven(options, folder / "run")
    engine: Any = run.engine
    assert isinstance(engine, Ranked)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in SCHEDULES}
    for turn in range(-2, options.rounds):
        for name, schedule in SCHEDULES.items():
            engine.schedule = schedule
            run.next_round()
            if turn >= 0:
                seconds = run.plan.history[-1]["seconds"]
                found[name].append({**seconds["ranks"], "train": seconds["train"]})
    if rank == 0:
        base = [c.base for c in engine.costs.values()]
        (folder / "found.json").write_text(json.dumps({"found": found, "base": base, "engine": run.own.name}))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()  # its threads must be gone before the process is


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--sigma", type=float, default=1.5)
    parser.add_argument("--engine", default="loop")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--inputs", type=int, nargs="+", default=[64])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.ranks < 2:
        parser.error("--ranks must be 2 or more")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as scratch:
        multiprocessing.spawn(work, (store.port, options, Path(scratch)), nprocs=options.ranks)
        told = json.loads((Path(scratch) / "found.json").read_text())
    cpu = hardware(torch.device("cpu"))
    print(f"{cpu['cpu']}, {cpu['cores']} cores, torch {torch.__version__}, {date.today()}")
    print(f"{options.ranks} ranks, engine {told['engine']}, {options.clients} clients, sigma {options.sigma}")
    print(f"{'schedule':10} {'straggler s':>12} {'slowest s':>10} {'fastest s':>10} {'train s':>9}   (medians)")
    for name, rounds in told["found"].items():
        middle = {k: float(np.median([r[k] for r in rounds])) for k in rounds[0]}
        row = [middle[k] for k in ("straggler", "slowest", "fastest", "train")]
        print(f"{name:10} {row[0]:>12.4f} {row[1]:>10.4f} {row[2]:>10.4f} {row[3]:>9.4f}")
    print(f"base cost at the end: {', '.join(f'{b:g}' for b in told['base'])} steps")
    if options.json:
        options.json.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
