"""Who may send to whom, by name: what a worker asks for its neighbours."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from atoll.errors import ConfigError
from atoll.schema import did_you_mean

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class WorkerTopology:
    """The neighbours of each worker, in an order that is the same for all: that of `links`.

    The order also says who calls whom on a network: the later of two calls the earlier one, so that a server that
    stands first is the only one that must be reachable.

    >>> WorkerTopology.star("server", ["a", "b"]).neighbours("server")
    ('a', 'b')
    >>> WorkerTopology.ring(["a", "b", "c", "d"]).neighbours("a")
    ('b', 'd')
    """

    links: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.links:
            raise ConfigError("topology: has no workers. Name one at least.")
        for name, others in self.links.items():
            if not _NAME.fullmatch(name):
                raise ConfigError(
                    f"topology: {name!r} is no name. Use 1 to 63 of a-z, 0-9, '-' and '.', such as 'client-3'."
                )
            unknown = [other for other in others if other not in self.links]
            if unknown:
                raise ConfigError(
                    f"topology: {name} has the neighbour {unknown[0]!r}, which is not there."
                    f"{did_you_mean(unknown[0], self.links)}"
                )
            if name in others or len(set(others)) < len(others):
                raise ConfigError(f"topology: {name} is its own neighbour, or has one twice. Name each other one once.")
            one_way = [other for other in others if name not in self.links[other]]
            if one_way:
                raise ConfigError(
                    f"topology: {name} has the neighbour {one_way[0]}, but not the other way round. A link goes both "
                    "ways, also where messages go one way only."
                )

    @classmethod
    def star(cls, hub: str, leaves: Sequence[str]) -> WorkerTopology:
        """One server and its clients."""
        return cls({hub: tuple(leaves), **dict.fromkeys(leaves, (hub,))})

    @classmethod
    def complete(cls, names: Sequence[str]) -> WorkerTopology:
        """Everybody with everybody."""
        return cls({name: tuple(other for other in names if other != name) for name in names})

    @classmethod
    def ring(cls, names: Sequence[str]) -> WorkerTopology:
        """Each with the one before and the one behind it."""
        n = len(names)
        near = {i: sorted({(i - 1) % n, (i + 1) % n} - {i}) for i in range(n)}
        return cls({name: tuple(names[j] for j in near[i]) for i, name in enumerate(names)})

    @classmethod
    def of(cls, names: Sequence[str], adjacency: Tensor) -> WorkerTopology:
        """Those of a matrix of booleans, (n, n) and symmetric."""
        if tuple(adjacency.shape) != (len(names), len(names)):
            raise ConfigError(f"topology: {len(names)} names and a matrix of {tuple(adjacency.shape)}. Let them agree.")
        rows = [[j for j, joined in enumerate(row) if joined] for row in adjacency.bool().tolist()]
        return cls({name: tuple(names[j] for j in rows[i]) for i, name in enumerate(names)})

    @classmethod
    def tree(cls, children: Mapping[str, Sequence[str]]) -> WorkerTopology:
        """Parents with their children: {"root": ["edge-0", "edge-1"], "edge-0": ["client-0"], ...}."""
        parents = {child: parent for parent, own in children.items() for child in own}
        names = dict.fromkeys(name for parent, own in children.items() for name in (parent, *own))
        above = {name: (parents[name],) if name in parents else () for name in names}
        return cls({name: (*above[name], *children.get(name, ())) for name in names})

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.links)

    def index(self, name: str) -> int:
        """The number of a worker on the wire."""
        self.check(name)
        return self.names.index(name)

    def check(self, name: str) -> None:
        """Refuse a name that is not there."""
        if name not in self.links:
            raise ConfigError(f"topology: there is no worker {name!r}.{did_you_mean(name, self.links)}")

    def neighbours(self, name: str) -> tuple[str, ...]:
        """Whom this worker may send to."""
        self.check(name)
        return tuple(self.links[name])

    def digest(self) -> bytes:
        """16 bytes that are the same for those who have the same names and links."""
        text = repr([(name, tuple(others)) for name, others in self.links.items()])
        return hashlib.blake2b(text.encode(), digest_size=16).digest()
