"""The round as one writes it with transformers and peft: clients one after the other, their adapters put in and out.

    python run.py FOLDER      # holds round.json and model, adapters, tokens (.safetensors); gets result.json

Runs in the benchmark's own environment, which has no atoll.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

PREFIX = "base_model.model."


def main(folder: Path) -> None:
    given = json.loads((folder / "round.json").read_text())
    device = torch.device(given["device"])
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    base = LlamaForCausalLM(LlamaConfig(**given["config"]))
    missing, unexpected = base.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    assert set(missing) <= {"lm_head.weight"}, missing  # which is tied
    assert not unexpected, unexpected
    base.tie_weights()
    lora = LoraConfig(r=given["rank"], lora_alpha=given["alpha"], target_modules=given["targets"], lora_dropout=0.0)
    model = get_peft_model(base, lora).to(device).train()
    learning = {_plain(n): p for n, p in model.named_parameters() if p.requires_grad}
    server = {k: v.to(device) for k, v in load_file(folder / "adapters.safetensors").items()}
    assert set(learning) == set(server), (sorted(learning)[:2], sorted(server)[:2])
    x, y = (v.to(device) for v in load_file(folder / "tokens.safetensors").values())  # "x", "y": (clients, steps, B, T)

    def one_round() -> dict[str, Tensor]:
        total = {k: torch.zeros_like(v) for k, v in server.items()}
        for client in range(len(x)):
            with torch.no_grad():
                for k, p in learning.items():
                    p.copy_(server[k])
            optimizer = torch.optim.SGD(learning.values(), lr=given["lr"])
            for inputs, targets in zip(x[client], y[client], strict=True):
                optimizer.zero_grad()
                logits = model(input_ids=inputs, use_cache=False).logits
                F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()).backward()
                optimizer.step()
            with torch.no_grad():
                for k, p in learning.items():
                    total[k].add_(p, alpha=1 / len(x))
        if device.type == "cuda":
            torch.cuda.synchronize()
        return total

    seconds, processor, learned = [], [], server
    for _ in range(given["repeats"] + 1):  # the first makes what it needs
        wall, busy = time.perf_counter(), time.process_time()
        learned = one_round()  # every time from the same adapters
        seconds.append(time.perf_counter() - wall)
        processor.append(time.process_time() - busy)
    save_file({k: v.cpu().contiguous() for k, v in learned.items()}, folder / "peft.safetensors")
    result = {"seconds": min(seconds[1:]), "processor_seconds": min(processor[1:])}
    (folder / "result.json").write_text(json.dumps(result))


def _plain(name: str) -> str:
    """base_model.model.LAYER.lora_A.default.weight -> LAYER.lora_A"""
    return name.removeprefix(PREFIX).removesuffix(".default.weight")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
