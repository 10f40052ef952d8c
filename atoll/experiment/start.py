"""A model that training starts from, read from a file or from the folder of another run."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from atoll.errors import ConfigError
from atoll.records import RunFolder

SAFETENSORS = ".safetensors"
_ONE_FILE, _SHARDS = "model.safetensors", "model.safetensors.index.json"  # in a folder of the hub's


def started_from(module: nn.Module, start: str | None) -> nn.Module:
    """A copy of the module with these weights; itself where the experiment names none."""
    if start is None:
        return module
    module, state = copy.deepcopy(module), _read(Path(start).expanduser())
    own = module.state_dict()
    state = _without_tied(own, state)
    problems = [*_unlike(own, state), *_missing(module, state)]
    if problems:
        more = f"; and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise ConfigError(
            f"task.start: {start} is of another model: {'; '.join(problems[:4])}{more}. Name one like it."
        )
    module.load_state_dict({**own, **state})
    return module


def _unlike(own: dict[str, Any], state: dict[str, Tensor]) -> list[str]:
    unknown = [f"it has {name!r}, which task.model has not" for name in state if name not in own]
    shapes = {k: (tuple(v.shape), tuple(own[k].shape)) for k, v in state.items() if k in own}
    return unknown + [f"{k!r} has shape {there}, here {here}" for k, (there, here) in shapes.items() if there != here]


def _without_tied(own: dict[str, Any], state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Without what the file has twice and the model once: a tied output layer beside its embedding."""
    known = [v for k, v in state.items() if k in own]
    return {k: v for k, v in state.items() if k in own or not any(_equal(v, x) for x in known)}


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(a, b))


def _missing(module: nn.Module, state: dict[str, Tensor]) -> list[str]:
    """Parameters that the file lacks; a buffer may be missing, such as statistics that a GroupNorm has not."""
    return [f"it lacks {name!r}" for name, _ in module.named_parameters(remove_duplicate=True) if name not in state]


def _read(path: Path) -> dict[str, Tensor]:
    if path.is_dir():
        return _read_hub(path) if _is_hub(path) else RunFolder(path).model()
    if not path.is_file():
        raise ConfigError(f"task.start: there is no file {path}. Name a .pt or {SAFETENSORS} file, or a run's folder.")
    try:
        state = (
            safetensors().load_file(path)
            if path.suffix == SAFETENSORS
            else torch.load(path, map_location="cpu", weights_only=True)
        )
    except ConfigError:
        raise
    except Exception as e:  # whatever a parser makes of a file that is none
        what = str(e).strip().partition("\n")[0][:200]
        raise ConfigError(f"task.start: {path} cannot be read as weights ({what}). Save a state_dict.") from e
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise ConfigError(f"task.start: {path} holds no state_dict (names and tensors). Save module.state_dict().")
    return state


def _is_hub(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (_ONE_FILE, _SHARDS))


def _read_hub(folder: Path) -> dict[str, Tensor]:
    """A model as the hub has it: one file, or several with an index that says which tensor is in which."""
    if (folder / _ONE_FILE).is_file():
        return _read(folder / _ONE_FILE)
    try:
        index: dict[str, str] = json.loads((folder / _SHARDS).read_text())["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise ConfigError(f"task.start: {folder / _SHARDS} cannot be read as an index of files. Fetch it again.") from e
    shards = {name: _read(folder / name) for name in sorted(set(index.values()))}
    lacking = [k for k, name in index.items() if k not in shards[name]]
    if lacking:
        raise ConfigError(
            f"task.start: {folder / index[lacking[0]]} lacks {lacking[0]!r}, which {_SHARDS} says it has. "
            "Fetch it again."
        )
    return {k: shards[name][k] for k, name in index.items()}


def safetensors() -> Any:
    """The package that reads and writes them, which nothing else needs."""
    try:
        import safetensors.torch
    except ModuleNotFoundError as e:
        raise ConfigError(
            "safetensors: the package is not installed. Run: pip install 'atoll[safetensors]', or use a .pt file."
        ) from e
    return safetensors.torch
