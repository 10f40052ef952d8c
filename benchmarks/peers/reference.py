"""Writes the data of the workloads, and says whether what a peer learned is what it should have learned.

    python reference.py make FOLDER           (once)
    python reference.py check FOLDER WORKLOAD ROUNDS LEARNED.npz

The yardstick is a bare loop over clients for as many rounds, from the same weights on the same data. Peers may take the
examples in another order and draw other dropout masks, so the loss and the distance moved must be near, not equal.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from common import CLASSES, WORKLOADS, Job, job
from models import MODELS, arrays, module
from torch import Tensor


def examples(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Random pictures: noise, with a faint pattern of blocks for every class, so that there is something to learn.

    Of texts: words by Zipf's law, so that it can be learned which are frequent.
    """
    work, draw = WORKLOADS[name], np.random.default_rng(7)
    n = work.clients * work.each
    if work.tokens:
        chance = 1 / np.arange(1, work.classes + 1)
        words = draw.choice(work.classes, (n, *work.inputs[:-1], work.inputs[-1] + 1), p=chance / chance.sum())
        return words[:, :-1], words[:, -1]
    y = draw.integers(0, CLASSES, n)
    if len(work.inputs) == 1:
        patterns = draw.normal(0, 0.2, (CLASSES, *work.inputs))
    else:
        channels, side, _ = work.inputs
        small = draw.normal(0, 0.2, (CLASSES, channels, side // 4, side // 4))
        patterns = small.repeat(4, 2).repeat(4, 3)
    x = draw.standard_normal((n, *work.inputs), dtype=np.float32)
    x += patterns[y].astype(np.float32)
    return x, y


def loss(name: str, weights: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray) -> float:
    """Mean cross-entropy of a model over all data, dropout off."""
    model = MODELS[name]().eval()
    model.load_state_dict({key: torch.from_numpy(value) for key, value in weights.items()})
    with torch.no_grad():
        parts = zip(torch.from_numpy(x).split(1000), torch.from_numpy(y).split(1000), strict=True)
        return float(sum(F.cross_entropy(model(a), b, reduction="sum") for a, b in parts)) / len(y)


def moved(start: dict[str, np.ndarray], end: dict[str, np.ndarray]) -> float:
    """How far all parameters together went from where they began."""
    return float(np.sqrt(sum(((end[key] - value).astype(np.float64) ** 2).sum() for key, value in start.items())))


def bare(work: Job) -> list[tuple[float, float]]:
    """(loss, distance moved) after every round of a loop over clients."""
    torch.manual_seed(0)
    model, steps = module(work), work.work
    x, y = torch.from_numpy(work.x), torch.from_numpy(work.y)
    server = [p.detach().clone() for p in model.parameters()]
    found = []
    for _ in range(work.rounds):
        model.train()
        total = [torch.zeros_like(p) for p in server]
        for c in range(steps.clients):
            _set(model, server)
            optimizer = torch.optim.SGD(model.parameters(), lr=steps.rate)
            orders = [torch.randperm(steps.each) + c * steps.each for _ in range(steps.epochs)]
            for rows in (rows for order in orders for rows in order.split(steps.batch)):
                optimizer.zero_grad()
                F.cross_entropy(model(x[rows]), y[rows]).backward()
                optimizer.step()
            for t, p in zip(total, model.parameters(), strict=True):
                t.add_(p.detach() / steps.clients)
        server = total
        _set(model, server)
        now = arrays(model)
        found.append((loss(work.name, now, work.x, work.y), moved(work.start, now)))
    return found


def _set(model: torch.nn.Module, values: list[Tensor]) -> None:
    with torch.no_grad():
        for p, v in zip(model.parameters(), values, strict=True):
            p.copy_(v)


def make(folder: Path) -> None:
    """Write every workload's data, first weights and yardstick that is not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, work in WORKLOADS.items():
        yardstick = folder / f"{name}.json"
        if yardstick.exists() and len(json.loads(yardstick.read_text())["rounds"]) >= work.rounds:
            continue
        x, y = examples(name)
        torch.manual_seed(0)
        start = arrays(MODELS[name]())
        np.savez(folder / f"{name}.npz", x=x, y=y, **{f"start/{key}": value for key, value in start.items()})
        rounds = bare(job(name, work.rounds, folder))
        yardstick.write_text(json.dumps({"start": loss(name, start, x, y), "rounds": rounds}))


def check(folder: Path, name: str, rounds: int, learned: Path) -> dict[str, object]:
    """What a peer's parameters are, beside what they should be; `wrong` says what does not fit (empty: nothing)."""
    held, work = np.load(learned), job(name, rounds, folder)
    weights = {key: held[key] for key in held.files}
    yardstick = json.loads((folder / f"{name}.json").read_text())
    wanted_loss, wanted_moved = yardstick["rounds"][rounds - 1]
    shapes = {key: value.shape for key, value in weights.items()}
    if shapes != {key: value.shape for key, value in work.start.items()}:
        return {"wrong": f"other parameters than the workload's model: {shapes}"}
    found = {"loss": loss(name, weights, work.x, work.y), "moved": moved(work.start, weights)}
    wrong = []
    if not found["loss"] < yardstick["start"]:
        wrong.append(f"the loss did not go down: {found['loss']:.4f} from {yardstick['start']:.4f}")
    if not abs(found["loss"] - wanted_loss) < 0.2 * (yardstick["start"] - wanted_loss):
        wrong.append(f"loss {found['loss']:.4f}, a bare loop has {wanted_loss:.4f} after {rounds} rounds")
    if not abs(found["moved"] - wanted_moved) < 0.15 * wanted_moved:
        wrong.append(f"moved by {found['moved']:.4f}, a bare loop by {wanted_moved:.4f}")
    count = sum(value.size for value in weights.values())
    known = {
        "parameters": count,
        "start_loss": yardstick["start"],
        "loop_loss": wanted_loss,
        "loop_moved": wanted_moved,
    }
    return {**found, **known, "wrong": "; ".join(wrong)}


if __name__ == "__main__":
    verb, folder, *rest = sys.argv[1:]
    if verb == "make":
        make(Path(folder))
    else:
        print(json.dumps(check(Path(folder), rest[0], int(rest[1]), Path(rest[2]))))
