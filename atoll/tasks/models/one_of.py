"""Several networks of which a client uses one: models of different kinds in one tree."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from pydantic import ConfigDict, ValidationError, create_model
from torch import Tensor, nn

from atoll.errors import ConfigError
from atoll.tasks.models.shapes import Shape

Builders = Mapping[str, Callable[..., nn.Module]]
_IN_PARTS = ("one_of", "gan", "gkt", "supernet")  # that algorithms of their own cut apart


class OneOf(nn.Module):
    """sum_k kind_k f_k(x), `kind` 1 for one network and 0 for the others: clients of different kinds, for `fedmd`.

    `of = [{ name = "mlp", widths = [64] }, { name = "cnn" }]`. All networks are computed, and what those that are not
    chosen put out counts nothing, so their gradients are 0. Without an algorithm that chooses, it is the first.
    """

    def __init__(
        self,
        inputs: Shape,
        outputs: int,
        of: list[dict[str, Any]] = [{"name": "mlp", "widths": [64]}, {"name": "linear"}],  # noqa: B006 (only read)
    ) -> None:
        from atoll.tasks.models import MODELS  # this one is among them

        super().__init__()
        if len(of) < 2:
            raise ConfigError("task.model.of: has fewer than two networks. Name the one by itself in task.model.")
        made = [_built(MODELS, entry, f"task.model.of.{i}", inputs, outputs) for i, entry in enumerate(of)]
        self.kind = nn.Parameter(torch.eye(len(of))[0])
        self.networks = nn.ModuleList(made)

    def forward(self, x: Tensor) -> Tensor:
        outs = torch.stack([network(x) for network in self.networks], -1)
        return outs @ self.kind


def _built(builders: Builders, entry: Mapping[str, Any], where: str, inputs: Shape, outputs: int) -> nn.Module:
    """The network that an entry names; strict, as the file is."""
    options, name = {k: v for k, v in entry.items() if k != "name"}, str(entry.get("name"))
    known = [k for k in builders if k not in _IN_PARTS]
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        guess = f" Did you mean {near[0]!r}?" if near else f" Use one of {', '.join(known)}."
        raise ConfigError(f"{where}.name: {name!r} is no network that can stand here.{guess}")
    wanted = list(inspect.signature(builders[name], eval_str=True).parameters.values())[2:]
    fields: dict[str, Any] = {p.name: (p.annotation, p.default) for p in wanted}
    try:
        checked = create_model(name, __config__=ConfigDict(extra="forbid", strict=True), **fields)(**options)
    except ValidationError as e:
        at, what = e.errors()[0]["loc"][0], e.errors()[0]["msg"]
        names = ", ".join(fields) or "none"
        raise ConfigError(f"{where}.{at}: {what} (got {options.get(str(at))!r}). Options: {names}.") from None
    return builders[name](inputs, outputs, **{k: getattr(checked, k) for k in fields})
