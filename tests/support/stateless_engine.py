"""An engine whose clients keep nothing."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from atoll.core import ClientStates, Engine
from atoll.tree import Tree


class StatelessEngine(Engine):
    """For tests that say in `submit` what is answered, and ask for nothing else."""

    def state(self) -> ClientStates:
        raise NotImplementedError

    def load(self, pieces: Iterable[tuple[Tensor, Tree]]) -> None:
        raise NotImplementedError

    def choice(self) -> dict[str, Any]:
        return {}
