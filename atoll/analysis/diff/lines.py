"""Two records, line by line: where they first differ. Seconds are not looked at: no two runs take the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Line = Mapping[str, Any]
_SECONDS = "seconds"
_MODEL = "model"  # the digest of the names, shapes and exact values of the model after the round


@dataclass(frozen=True)
class Difference:
    """One key of one round's line with another value in each record; None where a record lacks it."""

    round: int
    key: str
    a: Any
    b: Any


@dataclass(frozen=True)
class Lines:
    """What two records say, as far as both go."""

    rounds: tuple[int, int]  # how many each has
    model: int | None  # the first round after which the models differ
    first: Difference | None  # the first key that differs, of all but the model's digest
    keys: tuple[str, ...]  # all that differ in that round
    cohorts: bool  # were the same clients drawn in every round that both have?

    @property
    def same(self) -> bool:
        """Do both say the same, in as many rounds?"""
        return self.model is None and self.first is None and self.rounds[0] == self.rounds[1]


def compared(a: Sequence[Line], b: Sequence[Line]) -> Lines:
    """Where two records part.

    >>> lines = compared([{"round": 1, "loss": 0.5, "model": "x"}], [{"round": 1, "loss": 0.4, "model": "x"}])
    >>> lines.model, lines.first
    (None, Difference(round=1, key='loss', a=0.5, b=0.4))
    """
    both = list(zip(a, b, strict=False))
    model = next((x["round"] for x, y in both if x.get(_MODEL) != y.get(_MODEL)), None)
    differing = next((d for x, y in both if (d := differences(x, y))), [])
    cohorts = all(_ids(x) == _ids(y) for x, y in both)
    return Lines((len(a), len(b)), model, differing[0] if differing else None, tuple(d.key for d in differing), cohorts)


def differences(a: Line, b: Line) -> list[Difference]:
    """All keys of two lines that differ, but for the seconds and the model."""
    x, y = dict(_flat(a)), dict(_flat(b))
    keys = [key for key in dict.fromkeys([*x, *y]) if x.get(key) != y.get(key)]
    return [Difference(int(a["round"]), key, x.get(key), y.get(key)) for key in keys]


def _ids(line: Line) -> Any:
    return (line.get("cohort") or {}).get("ids")


def _flat(line: Line, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in line.items():
        if not prefix and key in (_SECONDS, _MODEL):
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
