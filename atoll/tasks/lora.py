"""Low-rank adapters: a frozen layer W learns W + alpha/rank B A, of which only A and B are trained and sent.

The base is constant to a task: engines stack adapters, and every client reads the same base.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import Tensor, nn
from torch.nn import functional as F

from atoll.errors import ConfigError
from atoll.tree import Tree


class LoraLinear(nn.Linear):
    """x W^T + b + alpha/rank dropout(x) A^T B^T, with B = 0 at first (Hu et al., 2021).

    Weight and bias keep their names, so that whatever is of the plain layer is found where it was.
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float, dropout: float) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        self.scale = alpha / rank
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.lora_A = nn.Parameter(base.weight.new_empty(rank, base.in_features))
        self.lora_B = nn.Parameter(base.weight.new_zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))  # as a linear layer of its own would be drawn

    def forward(self, x: Tensor) -> Tensor:
        low = F.linear(F.linear(self.dropout(x), self.lora_A), self.lora_B)
        return super().forward(x) + low * self.scale


def adapted(
    module: nn.Module,
    rank: int,
    alpha: float,
    targets: Sequence[str],
    dropout: float = 0.0,
    also_train: Sequence[str] = (),
) -> nn.Module:
    """A copy in which the target layers have adapters and everything else is frozen.

    A target is a pattern of a linear layer's name, whole ("model.layers.0.*.q_proj") or its last part ("q_proj");
    `also_train` are patterns of parameters that learn as they are.
    """
    layers = _targets(module, targets)
    _check_not_tied(module, layers)
    further = _further(module, also_train, {f"{n}.{k}" for n in layers for k in ("weight", "bias")})
    module = copy.deepcopy(module)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name in further)
    replacements: dict[nn.Module, LoraLinear] = {}  # a layer that stands in two places is still one layer
    for name in layers:
        base = module.get_submodule(name)
        assert isinstance(base, nn.Linear)
        if base not in replacements:
            replacements[base] = LoraLinear(base, rank, alpha, dropout)
        module = _replaced(module, name, replacements[base])
    return module


def merged_state(module: nn.Module, state: Tree) -> Tree:
    """The state of an adapted module as one of the plain module: W + alpha/rank B A, and no adapters."""
    state = dict(state)
    for name, layer in module.named_modules(remove_duplicate=False):
        if isinstance(layer, LoraLinear):
            prefix = f"{name}." if name else ""
            a, b = state.pop(f"{prefix}lora_A"), state.pop(f"{prefix}lora_B")
            state[f"{prefix}weight"] = state[f"{prefix}weight"].to(b.device) + layer.scale * (b @ a)
    return state


def merged(module: nn.Module) -> nn.Module:
    """A deep copy of an adapted module as a plain one, with its adapters added to its weights."""
    plain = copy.deepcopy(module)
    if not any(isinstance(m, LoraLinear) for m in module.modules()):
        return plain
    for name, layer in list(plain.named_modules(remove_duplicate=False)):
        if isinstance(layer, LoraLinear):
            linear = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
            linear.weight, linear.bias = layer.weight, layer.bias
            plain = _replaced(plain, name, linear)
    plain.load_state_dict(merged_state(module, {k: v.detach() for k, v in module.state_dict().items()}))
    return plain.requires_grad_()


def shared_copy(module: nn.Module) -> nn.Module:
    """A deep copy, but what is frozen has its numbers in the same memory: nobody writes there."""
    frozen = [p for p in module.parameters() if not p.requires_grad]
    memo: dict[int, object] = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in frozen}
    return copy.deepcopy(module, memo)


def _replaced(module: nn.Module, name: str, layer: nn.Module) -> nn.Module:
    """The module with another layer in this place; the layer, where the place is the whole module."""
    if name == "":
        return layer
    parent, _, last = name.rpartition(".")
    module.get_submodule(parent)._modules[last] = layer
    return module


def _targets(module: nn.Module, patterns: Sequence[str]) -> list[str]:
    linear = [n for n, m in module.named_modules(remove_duplicate=False) if type(m) is nn.Linear]
    for pattern in patterns:
        if not any(_matches(name, pattern) for name in linear):
            known = ", ".join(dict.fromkeys(name.rpartition(".")[2] or "*" for name in linear)) or "none"
            raise ConfigError(
                f"task.lora.targets: {pattern!r} is no linear layer of the model. Its linear layers are: {known}."
            )
    return [name for name in linear if any(_matches(name, pattern) for pattern in patterns)]


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name.rpartition(".")[2], pattern)


def _check_not_tied(module: nn.Module, layers: list[str]) -> None:
    """An adapter of a weight that stands elsewhere, too, could not be merged into it."""
    owners: dict[int, set[int]] = {}
    for m in module.modules():
        for p in m.parameters(recurse=False):
            owners.setdefault(id(p), set()).add(id(m))
    tied = [name for name in layers if len(owners[id(module.get_submodule(name).weight)]) > 1]
    if tied:
        raise ConfigError(
            f"task.lora.targets: {tied[0]!r} shares its weight with another layer, so an adapter could not be merged "
            "into it. Name other layers, or untie it."
        )


def _further(module: nn.Module, patterns: Sequence[str], adapting: set[str]) -> set[str]:
    """Names of parameters that learn as they are."""
    names = [name for name, p in module.named_parameters() if p.requires_grad]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            some = ", ".join(names[-3:])
            raise ConfigError(
                f"task.lora.also_train: {pattern!r} is no parameter of the model. The last ones are: {some}."
            )
    further = {name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)}
    both = sorted(further & adapting)
    if both:
        raise ConfigError(
            f"task.lora.also_train: {both[0]!r} is of a layer that has an adapter. Leave it out there, or in targets."
        )
    return further
