"""A secure shuffle: the server gets all vectors, and not whose each is (Bittau et al., 2017; Erlingsson et al., 2019).

Three parties. A client seals its vector for the server; a mix, which cannot open boxes, drops who sent them and hands
them on in a random order; the server opens them. `mix` is that party's generator: clients talk to it alone, and what it
returns is all that the server gets. `server` plays both, one after the other, for a run in one process.

A shuffle of vectors as they are hides little, for a vector may tell whose it is: clients need a local randomiser before
it (local_laplace, privunit), whose epsilon `atoll.privacy.shuffled` amplifies (Feldman, McMillan and Talwar, 2021).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeAlias

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from atoll.core import Client, Message, Server
from atoll.protocols.keys import need_cryptography
from atoll.protocols.message_parts import body_of, distinct_ids, leaf, need, octets, own_residues, to_tensor, whole
from atoll.protocols.sealed_box import OVERHEAD, BoxKey, seal
from atoll.protocols.secure_aggregation import RandomBytes, SecureAggregation, Security
from atoll.protocols.slots import pack_residues, unpack_residues
from atoll.protocols.threshold import Threshold, threshold_of
from atoll.tree import Tree

Mix: TypeAlias = Generator[Mapping[int, Message], Mapping[int, Message], Message]
_CONTEXT = b"atoll shuffle 1"
_TAG_BYTES = 16  # of a random number by which boxes are sorted: two are alike with probability m^2 / 2^129


@dataclass(frozen=True)
class SecureShuffle(SecureAggregation):
    """The sum, and beside it {"rows": (m, n) int64}, every client's vector in a random order."""

    needs: ClassVar[str] = "cryptography"

    bits: Annotated[int, Field(ge=2, le=62)] = 32
    threshold: Threshold = 2
    insecure_seed: bool = False

    def least(self, clients: int) -> int:
        return threshold_of(self.threshold, clients)

    def more_than_the_sum(self) -> str:
        return "the server sees every vector"

    def shuffles(self) -> bool:
        return True

    def security(self, clients: int) -> Security:
        return Security(
            1,
            "Every vector, but not whose it is, and who took part. What a vector itself tells of its sender stays.",
            "Nothing of each other. The mix learns who sent, and how long vectors are.",
            "The mix and the server do not collude; the mix keeps to the protocol, and really shuffles. Clients that "
            "collude with the server take their vectors out of the crowd. Privacy in numbers needs a local randomiser.",
        )

    def client(self, id: int, own: Tree, key: Tensor) -> Client:
        need_cryptography("shuffle")
        random, vector = self.random_bytes(key), own_residues(own, self.bits, id)
        message = yield None
        public = octets(body_of(message, "server_key", "mix"), "key", "mix")
        box = seal(public, pack_residues(vector.numpy(), self.bits).tobytes(), _CONTEXT, random)
        yield Message("sealed", {"box": to_tensor(box), "numbers": torch.tensor(len(vector))})

    def mix(self, ids: Sequence[int], server_key: bytes, random: RandomBytes) -> Mix:
        """Boxes in, without their senders out: `yield`s to clients, returns the message for the server."""
        inbox = yield {id: Message("server_key", {"key": to_tensor(server_key)}) for id in ids}
        least = threshold_of(self.threshold, len(ids))
        need(len(inbox) >= least, f"shuffle: {len(inbox)} vectors came, the threshold is {least}. Begin again.")
        senders = sorted(inbox)
        bodies = {id: body_of(inbox[id], "sealed", f"client {id}") for id in senders}
        lengths = {id: whole(body, "numbers", f"client {id}") for id, body in bodies.items()}
        numbers = lengths[senders[0]]
        boxes = [leaf(bodies[id], "box", torch.uint8, 1, f"client {id}") for id in senders]
        alike = set(lengths.values()) == {numbers} and {len(box) for box in boxes} == {self._box_bytes(numbers)}
        need(alike, f"shuffle: boxes for vectors of {lengths} numbers. One of another length would tell whose it is.")
        order = sorted(range(len(boxes)), key=[random(_TAG_BYTES) for _ in boxes].__getitem__)
        shuffled = torch.stack([boxes[i] for i in order])
        return Message("shuffled", {"boxes": shuffled, "ids": torch.tensor(senders), "numbers": torch.tensor(numbers)})

    def open(self, message: Message, key: BoxKey) -> Tree:
        """The server's half: what the mix sent, opened and added."""
        body = body_of(message, "shuffled", "mix")
        ids, numbers = distinct_ids(body, "mix"), whole(body, "numbers", "mix")
        boxes = leaf(body, "boxes", torch.uint8, 2, "mix")
        need(
            boxes.shape == (len(ids), self._box_bytes(numbers)),
            f"mix: sent boxes of {tuple(boxes.shape)} bytes for {len(ids)} clients with {numbers} numbers each.",
        )
        opened = (np.frombuffer(key.open(box.numpy().tobytes(), _CONTEXT), np.uint8) for box in boxes)
        rows = torch.from_numpy(np.stack([unpack_residues(vector, self.bits, numbers) for vector in opened]))
        return {"sum": rows.sum(0) & (1 << self.bits) - 1, "ids": torch.tensor(sorted(ids)), "rows": rows}

    def server(self, ids: Sequence[int], key: Tensor) -> Server:
        need_cryptography("shuffle")
        random = self.random_bytes(key)
        box = BoxKey.draw(random)
        message = yield from self.mix(ids, box.public, random)
        return self.open(message, box)

    def _box_bytes(self, numbers: int) -> int:
        return -(-numbers * self.bits // 8) + OVERHEAD
