"""A protocol in three steps that hides nothing: for tests of what is around protocols."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

import torch
from torch import Tensor

from atoll.core import Client, Message, Server
from atoll.errors import ProtocolError
from atoll.protocols import SecureAggregation, Security
from atoll.tree import Tree


@dataclass(frozen=True)
class SummedInClear(SecureAggregation):
    """Clients say that they are there, send their vectors as they are, and confirm."""

    vector_kind: ClassVar[str] = "vector"

    bits: int = 32
    threshold: float | int | None = None
    insecure_seed: bool = False
    trace: bool = False  # an option of its own

    def least(self, clients: int) -> int:
        share = 0.5 if self.threshold is None else self.threshold
        return share if isinstance(share, int) else max(1, ceil(share * clients - 1e-9))

    def security(self, clients: int) -> Security:
        return Security(1, "every vector", "nothing", "everybody trusts the server")

    def client(self, id: int, own: Tree, key: Tensor) -> Client:
        yield None
        yield Message("here", {})
        yield Message("vector", {"vector": own["vector"]})
        yield Message("confirm", {})

    def server(self, ids: Sequence[int], key: Tensor) -> Server:
        here = yield {id: Message("hello", {}) for id in ids}
        vectors = yield {id: Message("send", {}) for id in here}
        confirmed = yield {id: Message("received", {}) for id in vectors}
        if len(confirmed) < self.least(len(ids)):
            raise ProtocolError(f"{len(confirmed)} of {len(ids)} are left. {self.least(len(ids))} must stay.")
        total = sum((m.body["vector"] for m in vectors.values()), torch.zeros((), dtype=torch.int64))
        return {"sum": total % 2**self.bits, "ids": torch.tensor(sorted(vectors))}
