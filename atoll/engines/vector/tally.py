"""What a request's clients came to, chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Columns, Info, Trained
from atoll.engines.program import SENT, lifted, merged, reduce_key, upload_bytes
from atoll.engines.vector.stacked_jobs import Lanes, StackedRequest
from atoll.tree import Tree


class Tally:
    """Partial aggregates, losses and client state of one lane."""

    def __init__(self, lane: StackedRequest) -> None:
        self.lane, self.key = lane, reduce_key(lane.request)
        self.parts: list[Any] = []
        clients = len(lane.cohort)
        self.loss, self.finite = torch.zeros(clients), torch.zeros(clients, dtype=torch.bool)
        self.order: list[Tensor] = []
        self.upload: Tensor | None = None

    def lift(self, out: Tree, info: Info) -> Any:
        """The partial aggregate of some clients, whether or not their numbers are finite."""
        return lifted(self.lane.request.program, out, info, self.key)

    def add(self, out: Tree, places: Tensor, info: Info, part: Any = None) -> bool:
        """Some more clients, at these places of the cohort. The first look at their numbers waits for the device.

        `part` is what the reducer made of them, if it has been asked. False if some must be left out.
        """
        part = self.lift(out, info) if part is None else part
        loss, finite = torch.stack([out["loss"].float(), out["finite"].float()]).cpu()
        good = finite > 0
        self.loss.index_copy_(0, places, loss)
        self.finite.index_copy_(0, places, good)
        self._count_bytes(out, places)
        everybody = bool(good.all())
        if not everybody:
            places = places[good]
            kept = good.to(out["weight"].device)
            out, info = tree.rows(tree.select(out, (*SENT, "own")), kept), Info(*(x[kept] for x in info))
        if len(places):
            self.parts.append(part if everybody else self.lift(out, info))
            self.lane.rows.write(self.lane.cohort.id[places], out["own"])
            self.order.append(places)
        return everybody

    def _count_bytes(self, out: Tree, places: Tensor) -> None:
        sizes = upload_bytes(self.lane.request.program, out)
        if sizes is not None:
            self.upload = torch.zeros(len(self.loss), dtype=torch.int64) if self.upload is None else self.upload
            self.upload[places] = sizes

    def trained(self) -> Trained:
        """All of them together."""
        self.lane.rows.finish()
        order = torch.cat(self.order) if self.order else torch.zeros(0, dtype=torch.int64)
        partial = merged(self.lane.request.program, self.parts)
        return Trained.settled(partial, self.lane.cohort.examples, Columns(self.loss, self.finite, order, self.upload))


def share_out(tallies: Sequence[Tally], lanes: Lanes, rows: Tensor, out: Tree, info: Info) -> None:
    """What a chunk came to, to the lanes that its clients are of."""
    if not lanes.many:
        tallies[0].add(out, rows, info)
        return
    before = 0  # clients of the lanes before
    for tally, places in zip(tallies, lanes.places(rows), strict=True):
        if len(places):
            here = places.to(info.id.device)
            tally.add(tree.rows(out, here), rows[places] - before, Info(*(x[here] for x in info)))
        before += len(tally.lane.cohort)
