"""A language model, pre-trained on half of some documents, adapted by federated learning to the owners of the others.

python examples/lora.py [rounds]

The table of docs/language-models.md: all weights against low-rank adapters, by loss on text that clients held out and
by what travels.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import atoll
from atoll.data.sources.library_text import library_text
from atoll.tasks import MODELS

TEXT = library_text(window=32)
WAYS: dict[str, dict[str, Any]] = {
    "all weights": {},
    "adapters of rank 4, every layer": {"lora": {"rank": 4, "alpha": 8, "targets": ["*"]}},
    "adapters of rank 4, `q_proj` and `v_proj`": {"lora": {"rank": 4, "alpha": 8, "targets": ["q_proj", "v_proj"]}},
}


def run(folder: Path, rows: list[torch.Tensor], rounds: int, **more: Any) -> atoll.Run:
    """FedAvg on these clients' windows of text, a fifth of each held out."""
    return atoll.simulate(
        lambda: MODELS["llama"](inputs=TEXT.inputs, outputs=TEXT.outputs),
        TEXT,
        clients=rows,
        rounds=rounds,
        batch=16,
        engine="vector",
        evaluate={"every": rounds, "holdout": 0.2, "clients": "all"},
        out=folder,
        progress=False,
        **more,
    )


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    document = TEXT.keys["document"]
    rows = [(document == d).nonzero()[:, 0] for d in range(int(document.max()) + 1)]
    half = len(rows) // 2
    adam = {"name": "fedavg", "lr": 0.003, "optimizer": "adam"}
    with TemporaryDirectory() as scratch:
        base = run(Path(scratch) / "base", [torch.cat(rows[:half])], 1, algorithm=adam, epochs=8)
        print(f"pre-trained on {half} documents: loss {base.final['clients']['loss']['mean']:.2f} there")
        print("| what learns | numbers | loss of clients | kB up, a client and round |\n|---|---|---|---|")
        for i, (name, lora) in enumerate({"nothing": {}, **WAYS}.items()):
            task = {"start": str(Path(scratch) / "base"), **lora}
            still = {"algorithm": {"name": "fedavg", "lr": 1e-30}} if name == "nothing" else {"algorithm": adam}
            done = run(Path(scratch) / str(i), rows[half:], 1 if name == "nothing" else rounds, task=task, **still)
            up = done.history[-1]["bytes"]["up"] / len(rows[half:]) / 1e3
            numbers, sent = (0, 0.0) if name == "nothing" else (done.info["model"]["parameters"], up)
            print(f"| {name} | {numbers:,} | {done.final['clients']['loss']['mean']:.3f} | {sent:.1f} |", flush=True)


if __name__ == "__main__":
    main()
