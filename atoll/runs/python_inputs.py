"""What a Python program hands over itself, checked; and names for it, so that its record says so."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from atoll import rng, tree
from atoll.data import Dataset, Partition
from atoll.errors import ConfigError, PartitionError
from atoll.experiment import Entry, seeded_torch

ARRAYS, CLIENTS, MODULE = (f"{__name__}:{what}" for what in ("arrays", "clients", "module"))


def arrays(digest: str) -> NoReturn:
    """Arrays given from Python."""
    raise _only_from_python("data")


def clients(digest: str) -> NoReturn:
    """Lists of rows given from Python."""
    raise _only_from_python("partition")


def module(
    kind: str,
    digest: str | None = None,
    layout: str | None = None,
    loss: str | None = None,
    parameters: int | None = None,
) -> NoReturn:
    """A module given from Python, or what a function made of the seed, and perhaps a loss."""
    raise _only_from_python("task.model")


def _only_from_python(where: str) -> ConfigError:
    return ConfigError(f"{where}.name: was given from Python, so a file cannot rebuild it. Use atoll.simulate again.")


def make_module(model: Any, seed: int) -> nn.Module:
    """The module, or the one that the function makes, drawn from the seed and nothing else."""
    if isinstance(model, nn.Module):
        return _sized(model)
    if not callable(model):
        raise ConfigError(f"model: must be a torch module, or a function that makes one (got {type(model).__name__}).")
    with seeded_torch(rng.key(seed, "init")):
        module = model()
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model: the function gave a {type(module).__name__}, but must give a torch module.")
    return _sized(module)


def _sized(module: nn.Module) -> nn.Module:
    """The module, if the size of every weight is known: lazy layers draw theirs at the first batch."""
    lazy = [name for name, p in [*module.named_parameters(), *module.named_buffers()] if is_lazy(p)]
    if lazy:
        raise ConfigError(
            f"model: the size of {lazy[0]!r} is not known yet (a lazy layer). Give the layer its number of inputs."
        )
    return module


def named(module: nn.Module, loss: Callable[..., Any] | None, drawn: bool) -> Entry:
    """The module as an entry: its kind, a fingerprint of where it starts, and the loss if there is one.

    Where it was `drawn` from the seed, as a file's model is, only its layers and sizes count: seeds are one setting.
    """
    state = {k: v for k, v in module.state_dict().items() if isinstance(v, Tensor)}
    entry: Entry = {"name": MODULE, "kind": type(module).__name__}
    if drawn:
        shapes = {name: tuple(x.shape) for name, x in state.items()}
        layout = hashlib.blake2b(f"{module}{shapes}".encode(), digest_size=8).hexdigest()
        entry |= {"parameters": sum(p.numel() for p in module.parameters()), "layout": layout}
    else:
        entry |= {"digest": tree.digest(state)}
    return entry if loss is None else {**entry, "loss": getattr(loss, "__name__", type(loss).__name__)}


def named_functions(metrics: Any) -> dict[str, Any]:
    """Metrics that are functions, by name."""
    if isinstance(metrics, Mapping):
        return dict(metrics)
    return {m.__name__: m for m in metrics if not isinstance(m, str)}


def asked_metrics(metrics: Any) -> Entry:
    """What the record says of them."""
    names = (
        list(metrics) if isinstance(metrics, Mapping) else [m if isinstance(m, str) else m.__name__ for m in metrics]
    )
    return {"metrics": names} if names else {}


def is_entry(clients: Any) -> bool:
    """Is it a partition by name, and not rows by client?"""
    return isinstance(clients, Mapping) and any(isinstance(v, str | int | float | Mapping) for v in clients.values())


def cohort_entry(cohort: int | Entry | str | None) -> Entry | str:
    """None is everyone, a number is that many."""
    if cohort is None:
        return "everyone"
    return {"name": "fixed", "size": cohort} if isinstance(cohort, int) else cohort


def merged(first: Any, second: Any) -> Any:
    """Two tables as one; what is no table is left for the experiment to refuse."""
    tables = isinstance(first, Mapping) and isinstance(second, Mapping)
    return {**first, **second} if tables else (second if isinstance(first, Mapping) else first)


def listed(clients: Any, dataset: Dataset) -> Partition:
    """Lists of rows, one for each client, such lists by name, or the id of each row's client.

    A row in two lists is rarely meant; a `Partition` may have it.
    """
    if isinstance(clients, Partition):
        return clients.check(dataset.examples, overlap=True)
    names: tuple[str, ...] = ()
    if isinstance(clients, Mapping):
        names, clients = tuple(map(str, clients)), list(clients.values())
    elif (ids := _ids(clients, dataset.examples)) is not None:
        known, owner, sizes = np.unique(ids, return_inverse=True, return_counts=True)
        names = tuple(map(str, known.tolist()))
        clients = np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])
    try:
        rows = [_rows(c, i) for i, c in enumerate(clients)]
    except TypeError:
        raise ConfigError(
            "clients: must be a list of index arrays, an id for each row, or a partition such as 'iid' "
            f"(got {type(clients).__name__})."
        ) from None
    partition = Partition.from_lists(rows, overlap=True).check(dataset.examples, overlap=True)
    held = torch.bincount(partition.indices)
    if int(held.max()) > 1:
        row = int(held.argmax())
        both = partition.owners()[partition.indices == row].tolist()
        raise PartitionError(
            f"clients: row {row} is held by clients {both[0]} and {both[1]}. Give every row to one client; "
            "if that is meant, pass clients=Partition.from_lists(..., overlap=True)."
        )
    return replace(partition, client_names=names)


def _ids(clients: Any, examples: int) -> Any:
    """One client's id for each row, as scikit-learn's `groups`: numbers or names along one axis."""
    if isinstance(clients, list | tuple) and not all(isinstance(c, int | str | np.generic) for c in clients):
        return None
    ids = clients.detach().cpu().numpy() if isinstance(clients, Tensor) else np.asarray(clients)
    if ids.ndim != 1 or ids.dtype.kind not in "iuUSO" or not len(ids):
        return None
    if len(ids) != examples:
        raise PartitionError(
            f"clients: has {len(ids)} ids for {examples} examples. Give one for each row, or a list of arrays of rows."
        )
    return ids


def _rows(client: Any, number: int) -> Tensor:
    """One client's rows: whole numbers along one axis. A mask or a float would be read as something else."""
    rows = client.detach().cpu().numpy() if isinstance(client, Tensor) else np.asarray(client)
    if rows.ndim == 1 and not rows.size:
        return torch.zeros(0, dtype=torch.int64)
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        what = f"{rows.dtype} of shape {rows.shape}"
        instead = "np.flatnonzero(mask) turns a mask into rows." if rows.dtype == bool else "Use one axis of integers."
        raise PartitionError(f"clients: client {number} must be an array of row numbers (got {what}). {instead}")
    return torch.from_numpy(rows.astype(np.int64))
