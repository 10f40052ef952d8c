"""A hierarchy as a file asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from atoll.core import Transform
from atoll.errors import ConfigError
from atoll.rounds.edge_plan import EdgeLink
from atoll.rounds.edge_transforms import EdgeTransforms
from atoll.rounds.edges import make_edges
from atoll.rounds.hierarchical import Hierarchical

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]


def hierarchical(
    population: int,
    edges: list[Count] = [],  # noqa: B006
    rounds: list[Count] = [],  # noqa: B006
    share: list[Annotated[float, Field(gt=0, le=1)]] = [],  # noqa: B006
    groups: list[list[int | str]] | Literal["partition"] | None = None,
    transform: list[Transform] = [],  # noqa: B006
    level_transforms: list[list[Transform]] = [],  # noqa: B006
    link_mbps: list[Positive] = [],  # noqa: B006
    link_latency_ms: list[Annotated[float, Field(ge=0)]] = [],  # noqa: B006
    client_names: Sequence[str] = (),
    client_groups: Tensor | None = None,
    numbers: int | None = None,
) -> Hierarchical:
    """Clients report to edges, edges to those above, the last to the server; lists are from the clients up.

    `edges`: how many of each level, in a row; `groups`: whose clients are those of each edge of the first level, by
    number or name, or as the partition has them. `transform`: around what edges of all levels send up;
    `level_transforms`: a list for each level instead. `link_*`: between each level and the one above, on [clock].
    """
    if groups == "partition":
        if client_groups is None:
            raise ConfigError("round.groups: this partition has no groups. Use partition.name = 'groups', or edges.")
        lists: list[list[int | str]] = [[] for _ in range(int(client_groups.max()) + 1)]
        for client, group in enumerate(client_groups.tolist()[:population]):
            lists[group].append(client)
        groups = lists
    levels = edges if edges or groups is not None else [min(2, population)]
    tree = make_edges(population, client_names, levels, groups, rounds, share)
    mbps, latency = link_mbps or [float("inf")] * tree.levels, link_latency_ms or [0.0] * tree.levels
    for name, given in (("link_mbps", mbps), ("link_latency_ms", latency)):
        if len(given) != tree.levels:
            raise ConfigError(f"round.{name}: has {len(given)} numbers, and there are {tree.levels} levels of edges.")
    links = tuple(EdgeLink(*pair) for pair in zip(mbps, latency, strict=True))
    if transform and level_transforms:
        raise ConfigError(
            "round.transform: is for all levels, and round.level_transforms has a list for each. Keep one of them."
        )
    if level_transforms:
        return Hierarchical(tree, EdgeTransforms.on_each_level(level_transforms, tree, numbers), links)
    return Hierarchical(tree, EdgeTransforms.on_every_level(transform, tree, numbers), links)
