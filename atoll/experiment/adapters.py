"""Low-rank adapters on the model that an experiment names."""

from __future__ import annotations

import torch
from torch import nn

from atoll import rng
from atoll.data import Dataset
from atoll.errors import ConfigError
from atoll.experiment.experiment import Experiment
from atoll.experiment.module import seeded_torch
from atoll.experiment.task import example_batch
from atoll.tasks import LoraLinear, Supervised, adapted


def with_adapters(experiment: Experiment, module: nn.Module) -> nn.Module:
    """The module with `task.lora`, drawn from the seed; itself where the experiment has none."""
    table = experiment.task.lora
    if table is None:
        return module
    with seeded_torch(rng.key(experiment.seed, "lora")):
        return adapted(module, table.rank, table.alpha, table.targets, table.dropout, table.also_train)


def check_adapters(task: Supervised, dataset: Dataset) -> None:
    """Refuse adapters of layers whose weight is read without calling them: those would learn nothing."""
    layers = {m: name for name, m in task.model.named_modules() if isinstance(m, LoraLinear)}
    if not layers:
        return
    called: set[nn.Module] = set()
    handles = [m.register_forward_pre_hook(lambda layer, _: called.add(layer)) for m in layers]
    model = task.init(rng.key(0))
    try:
        with torch.no_grad():
            task.logits(model["params"], model["buffers"], example_batch(dataset), training=False)
    finally:
        for handle in handles:
            handle.remove()
    uncalled = [name for layer, name in layers.items() if layer not in called]
    if uncalled:
        raise ConfigError(
            f"task.lora.targets: the model never calls {uncalled[0]!r} as a layer, so its adapter would learn nothing. "
            "Name other layers."
        )
