"""One skew on top of another."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ConfigDict, ValidationError, create_model
from torch import Tensor

from atoll.data.partition.assign import Partitioner
from atoll.data.partition.dirichlet import QuantityDirichlet
from atoll.data.partition.fcube import FCube
from atoll.data.partition.natural import Natural
from atoll.data.partition.noise import FeatureNoise
from atoll.data.partition.partition import Partition
from atoll.data.partition.resize import resize
from atoll.data.partition.sizes import FixedPoints, LogNormal, PoissonLengths, PowerLaw
from atoll.errors import PartitionError
from atoll.rng import host

Builders = Mapping[str, Callable[..., Partitioner]]

_SIZES = (QuantityDirichlet, PowerLaw, LogNormal, PoissonLengths, FixedPoints)
_BOUND = (Natural, FCube)  # here a row belongs to its client, so sizes cannot be chosen


@dataclass(frozen=True)
class Compose:
    """One skew on top of another: a partition first, then sizes (a size law), then feature noise.

    `of = [{ name = "dirichlet", clients = 10, alpha = 0.5 }, { name = "power_law" }, { name = "noise", level = 0.1 }]`.
    The first entry is any partition and says how many clients there are; after it `clients` may be left out. A size
    law (quantity_dirichlet, power_law, lognormal, poisson, fixed) keeps what classes each client has and changes how
    much (`resize.py`); noise changes the inputs and leaves the rows alone.
    """

    of: tuple[dict[str, Any], ...] = ()

    def __call__(self, labels: Tensor | None, keys: dict[str, Tensor], examples: int, key: Tensor) -> Partition:
        from atoll.data.partition import PARTITIONS  # this entry is one of them

        if not self.of:
            raise PartitionError(
                "partition.of: is empty. "
                "Example: of = [{ name = 'iid', clients = 10 }, { name = 'noise', level = 0.1 }]"
            )
        first = _built(PARTITIONS, self.of[0], "partition.of.0", None)
        partition, parts = first(labels, keys, examples, host.fold(key, 0)), [repr(first)]
        for i, entry in enumerate(self.of[1:], 1):
            where = f"partition.of.{i}"
            part = _built(PARTITIONS, entry, where, partition.size)
            if isinstance(part, FeatureNoise):
                partition = part.over(partition)
            elif isinstance(part, _SIZES) and not isinstance(first, _BOUND):
                law = part(None, {}, len(partition.indices), host.fold(key, 2 * i))
                partition = resize(partition, labels, law.sizes, host.fold(key, 2 * i + 1), where)
            else:
                raise PartitionError(_refusal(where, entry, self.of[0]))
            parts.append(repr(part))
        return replace(partition, provenance=f"Compose({', '.join(parts)}) key={key.tolist()}")


def _refusal(where: str, entry: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    if first.get("name") in ("natural", "fcube") and entry["name"] != "noise":
        return (
            f"{where}.name: {entry['name']!r} cannot change the sizes of {first['name']!r}, "
            "whose rows belong to their clients. Use partition.of.0.minimum, or 'noise'."
        )
    return (
        f"{where}.name: {entry['name']!r} cannot stand on top of another partition. Put it first, or use a size law "
        "('quantity_dirichlet', 'power_law', 'lognormal', 'poisson', 'fixed') or 'noise'."
    )


def _built(builders: Builders, entry: Mapping[str, Any], where: str, clients: int | None) -> Partitioner:
    """The partitioner that an entry names; strict, as the file is."""
    options = {k: v for k, v in entry.items() if k != "name"}
    name = str(entry.get("name"))
    if name not in builders or name == "compose":
        near = difflib.get_close_matches(name, builders, 1)
        guess = f" Did you mean {near[0]!r}?" if near and name != "compose" else ""
        raise PartitionError(f"{where}.name: {name!r} is not a partition that can be composed.{guess}")
    wanted = inspect.signature(builders[name], eval_str=True).parameters
    if clients is not None and "clients" in wanted and options.setdefault("clients", clients) != clients:
        raise PartitionError(
            f"{where}.clients: {options['clients']} clients on top of {clients}. "
            "Leave it out: the first entry says how many."
        )
    fields: dict[str, Any] = {
        p.name: (p.annotation, ... if p.default is p.empty else p.default) for p in wanted.values()
    }
    try:
        checked = create_model(name, __config__=ConfigDict(extra="forbid", strict=True), **fields)(**options)
    except ValidationError as e:
        at, what = e.errors()[0]["loc"][0], e.errors()[0]["msg"]
        raise PartitionError(
            f"{where}.{at}: {what} (got {options.get(str(at))!r}). Options: {', '.join(wanted)}."
        ) from None
    return builders[name](**{k: getattr(checked, k) for k in wanted})
