"""LoRA on a small language model: clients as one stack of adapters over one base, beside a plain `peft` loop.

    python benchmarks/lora.py [--preset tiny|smollm2-135m] [--layers N] [--vocabulary N] [--device cpu|cuda]
                              [--clients 20] [--steps 10] [--batch 4] [--window 32] [--repeats 3] [--no-peft]
    python benchmarks/lora.py --memory        # peak memory by the number of clients, each in a process of its own

All start from the same random weights, the same adapters and the same batches (random tokens: a round's time does not
depend on what they say), and what they have learned after a round is compared. transformers and peft come in an
environment of their own (lora_peft/requirements.txt), unless they are installed; where that cannot be made, a plain
PyTorch loop stands alone. Atoll's figure is a whole round of a run, without evaluation.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from atoll import rng
from atoll.data import Dataset, Partition
from atoll.experiment import Experiment, assemble, make_module
from atoll.records import RunFolder
from atoll.runs import RunLoop, hardware
from atoll.tasks import adapted
from atoll.tasks.models.llama import PRESETS

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
from environment import InstallError, environment
from process import last_word

HERE = Path(__file__).resolve().parent
RANK, ALPHA, TARGETS, LR = 8, 16.0, ["q_proj", "v_proj"], 0.1


@dataclass(frozen=True)
class Shape:
    preset: str
    layers: int | None
    vocabulary: int | None
    device: str
    clients: int
    steps: int
    batch: int
    window: int

    @property
    def model(self) -> dict[str, Any]:
        own = {"layers": self.layers, "vocabulary": self.vocabulary}
        return {"name": "llama", "preset": self.preset, **{k: v for k, v in own.items() if v is not None}}

    @property
    def tokens(self) -> int:
        return self.vocabulary or PRESETS[self.preset].vocabulary or 256

    def config(self) -> dict[str, Any]:
        """The same sizes, in the words of transformers."""
        s = replace(PRESETS[self.preset], **{k: v for k, v in self.model.items() if k in ("layers", "vocabulary")})
        return {
            "vocab_size": self.tokens, "hidden_size": s.width, "intermediate_size": s.feedforward,
            "num_hidden_layers": s.layers, "num_attention_heads": s.heads, "num_key_value_heads": s.key_value_heads,
            "rms_norm_eps": s.eps, "rope_theta": s.rope_theta, "tie_word_embeddings": True,
            "max_position_embeddings": self.window,
        }  # fmt: skip


class Round:
    """One round of a real run, and all that the others need to do the same."""

    def __init__(self, shape: Shape, folder: Path) -> None:
        self.shape = shape
        each = shape.steps * shape.batch
        text = torch.randint(
            0, shape.tokens, (shape.clients * each, shape.window + 1), generator=torch.Generator().manual_seed(0)
        )
        self.x, self.y = text[:, :-1].contiguous(), text[:, 1:].contiguous()
        dataset = Dataset("tokens", "next_token", {"x": self.x, "y": self.y}, None, (shape.window,), shape.tokens)
        lora = {"rank": RANK, "alpha": ALPHA, "targets": TARGETS}
        experiment = Experiment.parse(
            {
                "rounds": 1_000_000,
                "data": {"name": "atoll.runs.python_inputs:arrays", "digest": "benchmark"},
                "task": {"model": shape.model, "lora": lora},
                "local": {"batch": shape.batch, "shuffle": False},
                "algorithm": {"name": "fedavg", "lr": LR},
                "engine": {"name": "vector"},
                "evaluate": {"every": 1_000_000, "clients": 0},
            }
        )
        self.module = make_module(shape.model, dataset, "task.model", rng.key(0, "init"))
        partition = Partition.from_lists(list(torch.arange(len(text)).reshape(shape.clients, each)))
        files = RunFolder(folder)
        files.create(0)
        self.setup = assemble(experiment, dataset, partition, self.module, shape.device)
        self.start = {k: v.cpu().clone() for k, v in self.setup.model["params"].items()}
        self.loop = RunLoop(self.setup, files)

    def next(self) -> None:
        self.loop.next_round()
        if self.shape.device == "cuda":
            torch.cuda.synchronize()

    def learned(self) -> dict[str, Tensor]:
        return {k: v.cpu() for k, v in self.loop.state.round["server"]["params"].items()}

    def batches(self) -> tuple[Tensor, Tensor]:
        """(clients, steps, batch, window) each."""
        s = self.shape
        return tuple(v.reshape(s.clients, s.steps, s.batch, s.window) for v in (self.x, self.y))  # type: ignore[return-value]


def plain_loop(round: Round) -> Callable[[], dict[str, Tensor]]:
    """The loop one would write by hand over the same module: adapters put in, torch.optim.SGD, added up."""
    where = round.shape.device
    model = adapted(round.module, RANK, ALPHA, TARGETS).to(where).train()
    learning = {k: p for k, p in model.named_parameters() if p.requires_grad}
    start = {k: v.to(where) for k, v in round.start.items()}
    x, y = (v.to(where) for v in round.batches())

    def go() -> dict[str, Tensor]:
        total = {k: torch.zeros_like(v) for k, v in start.items()}
        for c in range(len(x)):
            with torch.no_grad():
                for k, p in learning.items():
                    p.copy_(start[k])
            optimizer = torch.optim.SGD(learning.values(), lr=LR)
            for inputs, targets in zip(x[c], y[c], strict=True):
                optimizer.zero_grad()
                F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
                optimizer.step()
            with torch.no_grad():
                for k, p in learning.items():
                    total[k].add_(p, alpha=1 / len(x))
        if where == "cuda":
            torch.cuda.synchronize()
        return {k: v.cpu() for k, v in total.items()}

    return go


def peft_loop(round: Round, repeats: int, cache: Path) -> tuple[dict[str, float], dict[str, Tensor]]:
    """The same by transformers and peft, in their environment; an InstallError where it cannot be made."""
    here = importlib.util.find_spec("peft") is not None  # where nothing can be installed it may lie beside torch
    requirements = HERE / "lora_peft" / "requirements.txt"
    python = sys.executable if here else str(environment("lora_peft", requirements, cache)["python"])
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        x, y = round.batches()
        save_file(
            {k: v.detach().contiguous() for k, v in round.module.state_dict().items()}, folder / "model.safetensors"
        )
        save_file({k: v.contiguous() for k, v in round.start.items()}, folder / "adapters.safetensors")
        save_file({"x": x.contiguous(), "y": y.contiguous()}, folder / "tokens.safetensors")
        given = {"config": round.shape.config(), "device": round.shape.device, "repeats": repeats}
        given |= {"rank": RANK, "alpha": ALPHA, "targets": TARGETS, "lr": LR}
        (folder / "round.json").write_text(json.dumps(given))
        command = [python, str(HERE / "lora_peft" / "run.py"), str(folder)]
        env = os.environ | {"HF_HUB_OFFLINE": "1"} | ({} if here else {"PYTHONPATH": ""})
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        if done.returncode:
            sys.exit(f"benchmarks/lora_peft/run.py: {last_word(done.stderr)}")
        return json.loads((folder / "result.json").read_text()), load_file(folder / "peft.safetensors")


def timed(go: Callable[[], object], repeats: int) -> dict[str, float]:
    """The best of several, wall and processor."""
    seconds, processor = [], []
    for _ in range(repeats):
        wall, busy = time.perf_counter(), time.process_time()
        go()
        seconds.append(time.perf_counter() - wall)
        processor.append(time.process_time() - busy)
    return {"seconds": min(seconds), "processor_seconds": min(processor)}


def farthest(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    return max(float((v - b[k]).abs().max()) for k, v in a.items())


def compare(shape: Shape, repeats: int, with_peft: bool, cache: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        round = Round(shape, Path(scratch) / "run")
        round.next()
        learned = round.learned()
        rows: dict[str, Any] = {}
        plain = plain_loop(round)
        moved = farthest(learned, round.start)
        rows["plain loop"] = {"difference": farthest(learned, plain()), **timed(plain, repeats)}
        if with_peft:
            try:
                figures, theirs = peft_loop(round, repeats, cache)
                rows["peft loop"] = {"difference": farthest(learned, theirs), **figures}
            except InstallError as error:
                print(f"peft: not installed ({error}); the plain loop stands alone")
        for _ in range(2):  # steps are captured once a shape has been seen often
            round.next()
        rows["atoll"] = timed(round.next, repeats)
        sizes = {"adapters": sum(v.numel() for v in learned.values())}
        sizes["base"] = sum(v.numel() for v in round.setup.task.base().values())
        return {"shape": asdict(shape), **sizes, "moved": moved, "rows": rows, "engine": round.loop.engine.name}


def peak_megabytes(shape: Shape) -> tuple[float, float, float]:
    """Of a round in this process: at its peak, what was held before the first, and the base."""
    with tempfile.TemporaryDirectory() as scratch:
        round = Round(shape, Path(scratch) / "run")
        base = sum(v.nbytes for v in round.setup.task.base().values())
        if shape.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            for _ in range(3):
                round.next()
            return torch.cuda.max_memory_allocated() / 1e6, before / 1e6, base / 1e6
        before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        for _ in range(3):
            round.next()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, before / 1e6, base / 1e6


def memory_table(shape: Shape) -> None:
    """A process for each number of clients: a peak is of the whole process."""
    print("clients  peak MB  above start  base MB")
    points = []
    for clients in (1, 5, 10, 20):
        command = [sys.executable, __file__, "--peak", json.dumps(asdict(replace(shape, clients=clients)))]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peak, before, base = json.loads(done.stdout)
        points.append((clients, peak))
        print(f"{clients:7}  {peak:7.0f}  {peak - before:11.0f}  {base:7.0f}", flush=True)
    each = (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])
    print(f"one more client: {each:.1f} MB; a copy of the base for each would be {base:.0f} MB more")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="tiny")
    parser.add_argument("--layers", type=int, help="fewer than the preset has")
    parser.add_argument("--vocabulary", type=int, help="fewer tokens than the preset has")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    for name, usual in (("clients", 20), ("steps", 10), ("batch", 4), ("window", 32), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--no-peft", action="store_true", help="the plain loop alone")
    parser.add_argument("--memory", action="store_true", help="peak memory by the number of clients")
    parser.add_argument("--json", type=Path)
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "atoll" / "peers"
    parser.add_argument("--cache", type=Path, default=base, help="where the environment is kept (%(default)s)")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.peak:
        print(json.dumps(peak_megabytes(Shape(**json.loads(o.peak)))))
        return
    shape = Shape(o.preset, o.layers, o.vocabulary, o.device, o.clients, o.steps, o.batch, o.window)
    machine = hardware(torch.device(o.device))
    print(f"{machine['cpu']}, {torch.get_num_threads()} threads, torch {torch.__version__}, {date.today()}")
    if o.memory:
        memory_table(shape)
        return
    found = compare(shape, o.repeats, not o.no_peft, o.cache)
    print(
        f"{shape.model}: {shape.clients} clients x {shape.steps} steps of {shape.batch} x {shape.window} tokens; "
        f"{found['adapters']:,} numbers of adapters over {found['base']:,} frozen ones; engine {found['engine']}"
    )
    mine = found["rows"]["atoll"]["seconds"]
    for name, row in found["rows"].items():
        far = (
            f"  learned the same to {row['difference']:.1e} (moved {found['moved']:.1e})" if "difference" in row else ""
        )
        print(f"{name:11} {row['seconds']:8.3f} s, processor {row['processor_seconds']:8.3f} s"
              f"  {row['seconds'] / mine:5.2f}x{far}")  # fmt: skip
    if o.json:
        o.json.write_text(json.dumps({**found, "machine": machine, "date": str(date.today())}, indent=1))


if __name__ == "__main__":
    main()
