"""A reducer around another: what it promises of wrong updates is what the inner one promises."""

from __future__ import annotations

from typing import Any, TypeVar

from atoll.core import Reducer

P = TypeVar("P")


class ReducerAround(Reducer[P]):
    """Derive from it, with a field `inner`, so that no wrapper loses what the inner reducer needs or withstands."""

    inner: Reducer[Any]

    @property
    def assumes(self) -> str:  # type: ignore[override]
        """What the inner reducer does."""
        return self.inner.assumes

    def tolerates(self, clients: int) -> int:
        return self.inner.tolerates(clients)

    def breaks_at(self, clients: int) -> int | None:
        return self.inner.breaks_at(clients)

    def check_cohort(self, clients: int) -> None:
        self.inner.check_cohort(clients)

    def is_plain_mean(self, clients: int) -> bool:
        return self.inner.is_plain_mean(clients)

    def needs_root(self) -> bool:
        return self.inner.needs_root()
