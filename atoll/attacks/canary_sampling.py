"""How often each canary takes part in a round, whether it is in or out: a coin decides that, and is not asked here."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from atoll import rng
from atoll.core import Participation
from atoll.data import Sampler
from atoll.errors import ConfigError

_SHARED = ("poisson", "cyclic_poisson", "fixed", "fraction")  # who was drawn stays secret, and the account relies on it


def drawn(sampler: Sampler, population: int, count: int, round: int, key: Tensor) -> Tensor:
    """By the sampler that the run uses, (count,) int64: canaries are drawn as a federation of the same size would be.

    A sampler that draws more than it says draws more canaries. `key` is the run's, of the canaries' own. More canaries
    than clients are several such federations, each with draws of its own.
    """
    blocks = []
    for block in range(math.ceil(count / population)):
        ids, _ = sampler.sample(population, round, rng.fold_name(key, "canaries", block))
        blocks.append(torch.bincount(ids.cpu(), minlength=population))
    return torch.cat(blocks)[:count]


def sample_from_distribution(how: Participation, count: int, round: int, run: Tensor, key: Tensor) -> Tensor:
    """By what the sampler says of itself, (count,) int64; `run` is a key of the run, `key` one of the round."""
    if how.scheme == "everyone":
        return torch.ones(count, dtype=torch.int64)
    if how.scheme == "poisson" and how.probability is not None:
        return _bernoulli(key, how.probability, count)
    if how.scheme == "cyclic_poisson" and how.probability is not None and how.min_separation is not None:
        return _bernoulli(key, how.probability, count) * _has_turn(how.min_separation, count, round, run)
    if how.size is None or how.scheme == "available":
        raise ConfigError(
            f"privacy.canaries: nobody can say how often a canary takes part if cohort.name = {how.scheme!r}. "
            "Draw them with the sampler itself, or use cohort.name = 'fixed' or 'poisson'."
        )
    if how.scheme == "fixed_with_replacement":
        return _binomial(key, how.size, 1.0 / how.population, count)
    if how.scheme == "cyclic" and how.min_separation is not None:
        clients = len(range(round % how.min_separation, how.population, how.min_separation))
        return _bernoulli(key, how.size / clients, count) * _has_turn(how.min_separation, count, round, run)
    return _bernoulli(key, how.size / how.population, count)


def public(how: Participation) -> bool:
    """May an adversary know who was drawn? Yes, where the account does without amplification by sampling."""
    return how.scheme not in _SHARED


def _has_turn(min_separation: int, count: int, round: int, run: Tensor) -> Tensor:
    """Is this round one of its group's?"""
    return rng.bits(rng.fold_name(run, "group"), (count,)) % min_separation == round % min_separation


def _bernoulli(key: Tensor, p: float, count: int) -> Tensor:
    return (rng.uniform(key, (count,), torch.float64) < p).long()


def _binomial(key: Tensor, n: int, p: float, count: int) -> Tensor:
    """By inversion: how often one client comes among n draws with replacement."""
    import numpy as np
    from scipy.special import bdtr

    below = torch.from_numpy(np.asarray(bdtr(np.arange(n), n, p), np.float64))  # P[K <= 0], P[K <= 1], ..., P[K < n]
    return torch.searchsorted(below, rng.uniform(key, (count,), torch.float64))
