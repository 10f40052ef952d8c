"""A protocol of two messages: clients tell how long their updates are, then send them clipped to the median length."""

from dataclasses import dataclass

import torch

from atoll import tree
from atoll.core import Message, Protocol
from atoll.errors import ProtocolError


@dataclass(frozen=True)
class ClippedMean(Protocol):
    """The mean of updates, none longer than the median of their lengths; needs `least` clients to the end."""

    least: int = 2

    def client(self, id, own, key):
        yield  # waits for the server's first word
        bound = yield Message("length", {"length": tree.norm(own)})
        factor = (bound.body["length"] / (tree.norm(own) + 1e-12)).clamp(max=1.0)
        yield Message("update", tree.scale(own, factor))

    def server(self, ids, key):
        lengths = yield {id: Message("begin", {}) for id in ids}
        self._enough(lengths)
        bound = torch.stack([m.body["length"] for m in lengths.values()]).median()
        updates = yield {id: Message("bound", {"length": bound}) for id in lengths}
        self._enough(updates)
        return tree.map(lambda *xs: torch.stack(xs).mean(0), *(m.body for m in updates.values()))

    def _enough(self, inbox):
        if len(inbox) < self.least:
            raise ProtocolError(f"clipped mean: {len(inbox)} clients are left, {self.least} are needed. Begin again.")
