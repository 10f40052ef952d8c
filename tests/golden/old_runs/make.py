"""Writes `half/` and `whole.json` with the version that it is run by: 19607cd, the last with the first names.

git worktree add old 19607cd && PYTHONPATH=old python tests/golden/old_runs/make.py
"""

import json
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import atoll
from atoll import tree

HERE = Path(__file__).parent
FIRST: dict[str, Any] = {  # in the names of the first version
    "transforms": [
        "equal_weights",
        {"name": "clip_l2", "bound": {"name": "cosine", "start": 0.5, "over": 6, "end": 0.1}},
        {"name": "gaussian_noise", "multiplier": 0.3},
    ],
    "cohort": {"name": "cyclic", "size": 2, "separation": 3},
}


class GoneError(Exception):
    """What stops the first half."""


def stop(done: int, rounds: int, entry: object) -> None:
    if done == 3:
        raise GoneError


def simulate(out: Path, options: dict[str, Any], **more: Any) -> atoll.Run:
    """Six rounds of a linear model on 60 examples at 6 clients."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(60, 4)).astype(np.float32), draw.integers(0, 3, 60)
    torch.manual_seed(0)
    clients = [list(range(i, 60, 6)) for i in range(6)]
    algorithm = {"name": "fedavg", "lr": 0.1}
    return atoll.simulate(
        nn.Linear(4, 3), (x, y), clients=clients, algorithm=algorithm, rounds=6, engine="loop", device="cpu",
        checkpoint={"every": 1}, out=out, **options, **more,
    )  # fmt: skip


def main() -> None:
    shutil.rmtree(HERE / "half", ignore_errors=True)
    with suppress(GoneError):
        simulate(HERE / "half", FIRST, watch=stop)
    with tempfile.TemporaryDirectory() as folder:
        whole = simulate(Path(folder) / "whole", FIRST)
        params = {k: v.tolist() for k, v in whole.params.items()}
        kept = {"cpu": whole.info["hardware"]["cpu"], "digest": tree.digest(whole.params), "params": params}
    (HERE / "whole.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
