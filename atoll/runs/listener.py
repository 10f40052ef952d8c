"""Who hears what the rounds of a run did, and may have a word in it: an account of privacy is one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol

from atoll.core import Outcome
from atoll.tree import Tree


class Listener(Protocol):
    """Told of every round. `key` names its part of record lines and of run.json."""

    key: str
    diagnostics: frozenset[str]  # of an outcome that its part of the line tells: they are written nowhere else

    def objects(self, number: int) -> str | None:
        """Why round `number` must not be made; None if it may."""
        ...

    def hear(self, number: int, outcome: Outcome, left_out: int) -> dict[str, Any]:
        """A round was made; what its line says of it."""
        ...

    def replay(self, history: Iterable[Mapping[str, Any]]) -> None:
        """A resumed run had made these rounds."""
        ...

    def ended_by(self, what: Literal["a metric", "a client", "a bound"]) -> None:
        """The run ends early: because of what it measured, of what a client sent, or of a bound that did not hold."""
        ...

    def forecast(self) -> list[str]:
        """What the whole run would come to, in words, if it goes on as it begins."""
        ...

    def summary(self, state: Tree, quick: bool = False) -> dict[str, Any]:
        """What run.json says of the rounds so far; `quick` while the run goes on."""
        ...
