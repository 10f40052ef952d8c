"""Who is attacked: groups of clients, what they hold, and how the attacker thinks that they read it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.errors import ConfigError
from atoll.experiment import Setup


@dataclass(frozen=True, eq=False)
class Victims:
    """G groups of m clients with n examples each, at most: an attack sees one update, or one mean, of a group.

    `plan[g, c, s, :count[g, c, s]]` are places among a client's examples: what the attacker takes it to read in step s.
    The order of a client's batches is its own secret, so the attacker's plan takes examples as they come.
    """

    ids: Tensor  # (G, m)
    x: Tensor  # (G, m, n, *inputs) decoded, without augmentation
    y: Tensor  # (G, m, n)
    rows: Tensor  # (G, m, n) of the training data
    held: Tensor  # (G, m, n) bool: False is padding
    plan: Tensor  # (G, m, S, B)
    count: Tensor  # (G, m, S)
    steps: Tensor  # (G, m)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def examples(self) -> Tensor:
        """(G, m) of each client."""
        return self.held.sum(-1)

    @property
    def alike(self) -> bool:
        """Does every client take the same number of steps?"""
        return bool((self.count > 0).all())

    def in_one_step(self) -> Victims:
        """The same clients, taken to have made one step on all that they hold."""
        places = torch.arange(self.held.shape[-1], device=self.plan.device).expand(*self.ids.shape, 1, -1)
        return replace(self, plan=places, count=self.examples[..., None], steps=torch.ones_like(self.steps))

    def part(self, groups: slice) -> Victims:
        """Some of the groups."""
        return Victims(**{name: column[groups] for name, column in vars(self).items()})


def choose(cohort: Tensor, population: int, groups: int, clients: int, key: Tensor) -> Tensor:
    """(G, m) ids: the round's own cohort first, then others, as if they had been drawn."""
    first = list(dict.fromkeys(cohort.tolist()))
    others = [c for c in rng.permutation(key, population).tolist() if c not in set(first)]
    ids = (first + others)[: groups * clients]
    if len(ids) < clients:
        raise ConfigError(f"--clients: a mean of {clients} clients needs as many, and there are {population}.")
    return torch.tensor(ids[: len(ids) // clients * clients]).reshape(-1, clients)


def victims(setup: Setup, ids: Tensor) -> Victims:
    """What these clients hold, on the device."""
    flat, population = ids.reshape(-1), replace(setup.population, shuffle=False)
    sizes = setup.training.sizes_of(flat)
    if bool((sizes == 0).any()):
        raise ConfigError("--victims: some of these clients have no examples. Attack fewer, or another partition.")
    cohort, width = population.cohort(flat, rng.key(0)), int(sizes.max())
    held = torch.arange(width) < sizes[:, None]
    start = setup.training.offsets[flat][:, None]
    rows = setup.training.indices[torch.where(held, start + torch.arange(width), start)]
    plan = _places(cohort.plan, rows, held)
    shape = ids.shape
    some = tree.to(tree.rows(setup.dataset.train, rows.reshape(-1)), setup.device)
    decoded = setup.dataset.decode({**some, "key": torch.zeros(2, dtype=torch.int64, device=setup.device)})
    x, y = decoded["x"], decoded["y"]
    here = setup.device
    return Victims(
        ids,
        x.reshape(*shape, width, *x.shape[1:]),
        y.reshape(*shape, width, *y.shape[1:]),
        rows.reshape(*shape, width),
        held.reshape(*shape, width).to(here),
        plan.reshape(*shape, *plan.shape[1:]).to(here),
        cohort.count.reshape(*shape, -1).to(here),
        cohort.steps.reshape(shape).to(here),
    )


def _places(plan: Tensor, rows: Tensor, held: Tensor) -> Tensor:
    """Rows of the data as places in each client's own list: (C, S, B)."""
    last = torch.iinfo(torch.int64).max
    ordered, back = torch.where(held, rows, last).sort(-1)
    places = torch.searchsorted(ordered, plan.reshape(len(plan), -1).contiguous())
    return back.gather(1, places.clamp(max=rows.shape[1] - 1)).reshape(plan.shape)
