"""The model of a run, built again from its folder: the server's, or a client's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from atoll import rng, tree
from atoll.algorithms import model_of
from atoll.data import ModelInputs, Partition
from atoll.engines import RowLayout
from atoll.errors import ConfigError, RecordError
from atoll.experiment import Experiment, Setup, assemble, did_you_mean, make_module, safetensors, usual_model
from atoll.records import RunFolder, find
from atoll.runs.checkpoint import read_checkpoint, rows
from atoll.runs.python_inputs import MODULE
from atoll.runs.round_plan import RoundPlan
from atoll.tree import Tree

Client = int | str
_ROWS = 1024  # predicted at a time


@dataclass(frozen=True)
class UsableModel:
    """What a folder holds of it; `module` is the one that a program handed over, if one did, or its import path."""

    folder: RunFolder
    module: nn.Module | str | None = None

    def loaded(self, client: Client | None, params: Tree) -> nn.Module:
        """The module with the server's weights (`params`), or those of a client, ready to predict."""
        setup = self._setup(of_client=client is not None)
        if client is None and setup.algorithm.traits().partial:
            raise ConfigError(
                f"client: with {setup.experiment.algorithm['name']} the server's model is not whole; clients keep a "
                "part of it. Name a client."
            )
        state = params if client is None else self._of_client(setup, client)
        module = setup.task.plain_module()
        module.load_state_dict(state)
        return module.eval()

    def inputs(self) -> ModelInputs:
        return ModelInputs.from_json(self.folder.preprocessing())

    def outputs(self, module: nn.Module, x: Any) -> Tensor:
        """The module's outputs for rows of any form that `ModelInputs.decoded` takes."""
        options, inputs = self.folder.info["experiment"]["data"], self.inputs()
        batches = inputs.decoded(x, options).split(_ROWS)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            return torch.cat([inputs.call(module, batch) for batch in batches])

    def _setup(self, of_client: bool) -> Setup:
        """The experiment on zeros: what its model and its algorithm are does not depend on examples.

        Of a client, transforms are needed, which may keep something with it, and the base of its adapters; privacy is
        not accounted for again.
        """
        info, inputs = self.folder.info, self.inputs()
        experiment = Experiment.parse(_without_data(info["experiment"], of_client))
        clients = int(info["partition"]["clients"])
        partition = Partition(torch.arange(clients + 1), torch.zeros(clients, dtype=torch.int64))
        return assemble(experiment, inputs.example(), partition, self._module(experiment, inputs), "cpu")

    def _module(self, experiment: Experiment, inputs: ModelInputs) -> nn.Module:
        entry = experiment.task.model or usual_model(inputs.kind, inputs.inputs, inputs.vocabulary)
        if isinstance(self.module, nn.Module) and entry["name"] == MODULE:
            return self.module
        if entry["name"] == MODULE and self.module is None:
            raise ConfigError(
                f"model: {entry['kind']} was given from Python, so its folder cannot rebuild it. Hand one over: "
                f"run.model(module=...), or name its class: atoll predict --module my_nets:{entry['kind']}."
            )
        where, entry = ("module", {"name": self.module}) if entry["name"] == MODULE else ("task.model", entry)
        return make_module(entry, inputs.example(), where, rng.key(experiment.seed, "init"))

    def _of_client(self, setup: Setup, client: Client) -> Tree:
        """What a client predicts with: its part of the checkpoint, and what the server would send it."""
        traits = setup.algorithm.traits()
        if not (traits.personal or traits.partial or setup.round.traits().per_client):
            raise ConfigError(
                f"client: with {setup.experiment.algorithm['name']} clients have no models of their own. Leave it out."
            )
        self._check_base(setup)
        number, plan = self._number(client, setup.training.size), RoundPlan(setup)
        saved = read_checkpoint(self.folder)
        plan.history[:] = self.folder.record()
        own = self._rows(saved, RowLayout(plan.client_rows), number) or plan.client_rows
        ctx, ids = plan.context(saved.rounds), torch.tensor([number])
        sent, _ = setup.round.broadcast(ctx, saved.round, ids)
        sent = tree.rows(sent, 0) if setup.round.traits().sends_rows else sent
        state: Tree = setup.task.state(model_of(ctx.algorithm.start(sent, own["algorithm"])))
        return state

    def _check_base(self, setup: Setup) -> None:
        """What a client learned belongs to the frozen weights beside which it learned."""
        was, base = find(self.folder.info, "model", "base"), setup.task.base()
        if was and was != tree.digest(base):
            raise ConfigError(
                "client: its adapters belong to other frozen weights than are here now. Hand over the module that "
                "training started from, or put the file that task.start names back as it was."
            )

    def _rows(self, saved: Any, layout: RowLayout, number: int) -> Tree | None:
        """What this client keeps; None if it never took part."""
        for ids, held in rows(self.folder, saved, layout):
            at = (ids == number).nonzero()
            if len(at):
                return tree.map(torch.clone, tree.rows(held, int(at[0, 0])))  # type: ignore[no-any-return]
        return None

    def _number(self, client: Client, clients: int) -> int:
        names = [str(name) for name in find(self.folder.info, "partition", "names") or ()]
        if isinstance(client, str) and client in names:
            return names.index(client)
        if str(client).isdecimal() and int(client) < clients:
            return int(client)
        known = f" It has {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}." if names else ""
        guess = did_you_mean(str(client), names)
        raise ConfigError(f"client: there is no {client!r}.{guess}{known} Or use a number, 0 to {clients - 1}.")


def _without_data(experiment: Mapping[str, Any], of_client: bool) -> dict[str, Any]:
    """The experiment without what only its data or its rounds ask for."""
    rounds = () if of_client else ("transform", "cohort", "secure")
    left_out = ("metric", "privacy", "stop", "evaluate", "reducer", *rounds)
    plain = {k: v for k, v in experiment.items() if k not in left_out}
    start = () if of_client and "lora" in experiment["task"] else ("start",)  # else all weights are in the folder
    plain["task"] = {k: v for k, v in experiment["task"].items() if k not in ("loss", *start)}
    plain["local"] = {k: v for k, v in experiment["local"].items() if k != "privacy"}
    return plain


def save_weights(module: nn.Module, path: Path) -> Path:
    """The module's state in the format that the name asks for."""
    state = {name: x.detach().cpu().clone().contiguous() for name, x in module.state_dict().items()}
    if path.suffix == ".safetensors":
        safetensors().save_file(state, path)
    elif path.suffix in (".pt", ".pth"):
        torch.save(state, path)
    else:
        raise RecordError(f"{path}: weights are written as .pt or .safetensors. Name it so.")
    return path
