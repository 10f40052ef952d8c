"""The rounds that `benchmarks/gpu.py` measures, and the same as plain PyTorch loops over clients."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.data import Dataset, Pixels
from atoll.tasks import MODELS


def pictures(channels: int, side: int, examples: int) -> Dataset:
    """Random bytes in the shape of a well-known set."""
    g = torch.Generator().manual_seed(0)

    def part(n: int) -> dict[str, Tensor]:
        x = torch.randint(0, 256, (n, channels, side, side), generator=g, dtype=torch.uint8)
        return {"x": x, "y": torch.randint(0, 10, (n,), generator=g)}

    return Dataset(
        "pictures", "classification", part(examples), part(10_000), (channels, side, side), 10, Pixels()
    ).check()


def tokens(vocabulary: int, length: int, examples: int) -> Dataset:
    """Random tokens, each the target of the one before it."""
    g = torch.Generator().manual_seed(0)

    def part(n: int) -> dict[str, Tensor]:
        text = torch.randint(0, vocabulary, (n, length + 1), generator=g)
        return {"x": text[:, :-1].contiguous(), "y": text[:, 1:].contiguous()}

    return Dataset("tokens", "next_token", part(examples), part(1000), (length,), vocabulary).check()


@dataclass(frozen=True)
class Row:
    """A round: so many clients of 1,000 or fewer, each with so many steps of a batch."""

    words: str
    data: dict[str, Any]
    model: dict[str, Any]
    clients: int
    population: int
    steps: int
    batch: int
    lr: float = 0.1

    @property
    def experiment(self) -> dict[str, Any]:
        return {
            "data": {**self.data, "examples": self.population * self.steps * self.batch},
            "partition": {"name": "iid", "clients": self.population},
            "cohort": {"name": "fixed", "size": self.clients},
            "task": {"model": self.model},
            "local": {"batch": self.batch, "epochs": 1},
            "algorithm": {"name": "fedavg", "lr": self.lr},
            "evaluate": {"every": 10, "clients": 0},
            "checkpoint": {"every": 0},
        }

    def dataset(self) -> Dataset:
        given = self.experiment["data"]
        make = {"pictures": pictures, "tokens": tokens}[given.pop("name").split(":")[1]]
        return make(**given)


_CIFAR = {"name": "benchmarks.gpu_rows:pictures", "channels": 3, "side": 32}
ROWS = {
    "pfl": Row("50 x 5 steps of 10, pfl-research's CNN (1.63 M)", _CIFAR, {"name": "cnn"}, 50, 1000, 5, 10),
    "resnet": Row(
        "20 x 4 steps of 16, ResNet-18 with GroupNorm, 32 x 32 pixels",
        _CIFAR, {"name": "resnet18", "norm": "group"}, 20, 100, 4, 16, 0.01,
    ),
    "transformer": Row(
        "100 x 4 steps of 16 texts of 20 tokens, transformer of pfl-research's StackOverflow (1.97 M)",
        {"name": "benchmarks.gpu_rows:tokens", "vocabulary": 10_004, "length": 20},
        {"name": "transformer_lm"}, 100, 200, 4, 16,
    ),
    "lstm": Row(
        "50 x 4 steps of 16 texts of 80 characters, LSTM of 2 x 256 (0.82 M)",
        {"name": "benchmarks.gpu_rows:tokens", "vocabulary": 90, "length": 80},
        {"name": "char_lstm"}, 50, 200, 4, 16, 0.5,
    ),
}  # fmt: skip


def bare(row: Row, rounds: int) -> dict[str, Any]:
    """The round as a plain loop over clients, LSTMs by cuDNN."""
    torch.set_float32_matmul_precision("high")
    data = row.dataset()
    x, y = data.train["x"].cuda(), data.train["y"].cuda()
    x = x.float() / 255 if x.dtype == torch.uint8 else x
    options = {k: v for k, v in row.model.items() if k != "name"}
    model = _plain(MODELS[row.model["name"]](inputs=data.inputs, outputs=data.outputs, **options)).cuda()
    server, times, each = [p.detach().clone() for p in model.parameters()], [], row.steps * row.batch
    for _ in range(rounds):
        torch.cuda.synchronize()
        before = time.perf_counter()
        total = [torch.zeros_like(p) for p in server]
        for c in torch.randperm(row.population)[: row.clients].tolist():
            with torch.no_grad():
                for p, s in zip(model.parameters(), server, strict=True):
                    p.copy_(s)
            optimizer = torch.optim.SGD(model.parameters(), lr=row.lr)
            for rows in (torch.randperm(each, device="cuda") + each * c).split(row.batch):
                optimizer.zero_grad()
                F.cross_entropy(model(x[rows]).flatten(0, -2), y[rows].flatten()).backward()
                optimizer.step()
            with torch.no_grad():
                for t, p in zip(total, model.parameters(), strict=True):
                    t.add_(p, alpha=1 / row.clients)
        server = total
        torch.cuda.synchronize()
        times.append(time.perf_counter() - before)
    return {"round_ms": round(1e3 * statistics.median(times[1:] or times), 3)}


class _Cudnn(torch.nn.LSTM):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)[0]


def _plain(model: torch.nn.Module) -> torch.nn.Module:
    """A model whose LSTM, which is ours for the sake of stacking, is cuDNN's."""
    lstm = getattr(model, "lstm", None)
    if lstm is not None:
        model.lstm = _Cudnn(model.embedding.embedding_dim, lstm.hidden, 2, batch_first=True)  # type: ignore[union-attr,arg-type]
    return model
