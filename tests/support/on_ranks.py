"""A run on several processes of this machine, beside the same run on one."""

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import TCPStore

import atoll
from atoll import tree
from atoll.runs import Run

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["atoll.runs", "atoll.cli.main", "atoll.report", "sklearn.datasets", "pytest"])
MEASURED = ("round/secure/coefficients", "round/secure/fit")  # by a watch, when the run begins
FEDAVG = {"name": "fedavg", "lr": 0.1}


def experiment(**changes: Any) -> dict[str, Any]:
    return {
        "rounds": 3,
        "data": "digits",
        "partition": {"name": "dirichlet", "clients": 9, "alpha": 0.3},
        "cohort": {"name": "fixed", "size": 5},
        "task": {"model": {"name": "mlp", "widths": [8]}},
        "local": {"max_steps": 6},
        "algorithm": FEDAVG,
        "engine": "vector",
        "evaluate": {"every": 3, "holdout": 0.2, "batch": 100},
        "checkpoint": {"every": 2},
        **changes,
    }


def on_cpu(given: Any, folder: Path, resume: bool = False) -> Run:
    """The same on machines with and without a GPU."""
    return atoll.run(given, folder, resume=resume, device="cpu")


def rank_of_many(rank: int, size: int, port: int, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """What torchrun does for a process, and then the work."""
    names = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ.update({k: str(v) for k, v in names.items()}, MASTER_ADDR="127.0.0.1", ATOLL_TIMEOUT="60")
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # the launcher holds the store
    work(rank, *args)


@contextmanager
def ranks(size: int, work: Callable[..., Any], *args: Any) -> Iterator[list[Any]]:
    """So many processes at the same work; none is left behind."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    started = [PROCESSES.Process(target=rank_of_many, args=(r, size, store.port, work, args)) for r in range(size)]
    for p in started:
        p.start()
    try:
        yield started
        for p in started:
            p.join(120)
            assert p.exitcode is not None, "hangs"
    finally:
        for p in started:
            p.kill()
            p.join()


def together(size: int, work: Callable[..., Any], *args: Any) -> None:
    with ranks(size, work, *args) as started:
        pass
    assert [p.exitcode for p in started] == [0] * size


def close(a: Any, b: Any, tolerance: float = 2e-5) -> None:
    for (path, x), (_, y) in zip(tree.paths(a), tree.paths(b), strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance, msg=lambda m, path=path: f"{path}: {m}")


def alike(ours: Run, theirs: Run) -> None:
    """The same run but for the order of float sums: models, memories, metrics (counts exactly) and records."""
    close(ours.params, theirs.params)
    saved = [torch.load(r.folder / "checkpoint.pt", weights_only=True) for r in (ours, theirs)]
    parts = [{path: x for path, x in tree.paths(s["parts"]) if path not in MEASURED} for s in saved]
    close(parts[0], parts[1])
    assert saved[0]["round"] == saved[1]["round"]
    assert ours.status == theirs.status
    for a, b in zip(ours.history, theirs.history, strict=True):
        assert a.keys() == b.keys()
        for k in ("round", "cohort", "bytes", "settings", "dropped", "accuracy"):
            assert a.get(k) == b.get(k), k
        for k in ("train_loss", "loss"):
            assert a.get(k, 0) == pytest.approx(b.get(k, 0), rel=1e-4), k
        for k in ("clients", "after"):
            if k in a:
                assert a[k]["accuracy"] == b[k]["accuracy"]
                assert a[k]["loss"] == pytest.approx(b[k]["loss"], rel=1e-4)
    looks = [json.loads((r.folder / "clients.json").read_text()) for r in (ours, theirs)]
    assert looks[0]["ids"] == looks[1]["ids"]
    assert looks[0]["before"]["accuracy"] == looks[1]["before"]["accuracy"]
