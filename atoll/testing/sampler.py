"""What every sampler of cohorts must do."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from atoll import rng
from atoll.core import Participation
from atoll.testing.assertions import need

_POPULATION, _ROUNDS = 40, 12


def check_sampler(sampler: Any) -> list[str]:
    """The names of the checks that a sampler passes, or a ConformanceError that says which one it does not.

    >>> from atoll.data.sampling import Fixed
    >>> check_sampler(Fixed(size=5))[0]
    'draws clients that there are'
    """
    sampler.check(_POPULATION)
    key = rng.key("cohort")
    drawn = [sampler.sample(_POPULATION, number, key) for number in range(_ROUNDS)]
    again = [sampler.sample(_POPULATION, number, key) for number in range(_ROUNDS)]
    for ids, how in drawn:
        _is_a_cohort(ids, how)
    same = all(a[0].equal(b[0]) and a[1] == b[1] for a, b in zip(drawn, again, strict=True))
    cause = "torch.randperm or a generator kept in the object; draw from the key and the round's number"
    need(same, "same key and round, same cohort", "another cohort", "the same one", cause)
    return ["draws clients that there are", "nobody twice, unless it says so", "says how they were drawn", "pure"]


def _is_a_cohort(ids: Tensor, how: Participation) -> None:
    need(isinstance(how, Participation), "says how it drew", type(how).__name__, "a Participation", "a plain tuple")
    there = ids.dim() == 1 and not ids.is_floating_point() and bool(((ids >= 0) & (ids < _POPULATION)).all())
    need(there, "draws clients that there are", ids.tolist(), f"integers below {_POPULATION}", "an id off by one")
    repeats = len(ids) - len(set(ids.tolist()))
    need(
        not repeats or how.replacement, "nobody comes twice", f"{repeats} twice", "each once", "draws with replacement"
    )
    size = how.size
    need(size is None or size == len(ids), "draws as many as it says", len(ids), size, "Participation(size=...)")
    need(how.population == _POPULATION, "knows how many there are", how.population, _POPULATION, "a number of its own")
