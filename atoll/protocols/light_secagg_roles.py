"""Both sides of LightSecAgg: coded shares of masks, masked vectors, and the sum of shares that recovers the masks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hmac import compare_digest

import numpy as np
import torch
from torch import Tensor

from atoll.core import Client, Server
from atoll.errors import ProtocolError
from atoll.protocols.keys import KEY_BYTES, SESSION_BYTES, KeyPair, byte_row
from atoll.protocols.lagrange import decoding_matrix, encoding_matrix
from atoll.protocols.mailbox import BOXES, Mailbox, introduce, relay
from atoll.protocols.masks import SEED_BYTES, words
from atoll.protocols.mersenne import Elements, MersenneField
from atoll.protocols.message_fields import (
    BYTES,
    NUMBERS,
    Fields,
    begin,
    enough,
    id_row,
    one_length,
    read,
    read_all,
    read_ids,
    read_start,
    say,
)
from atoll.protocols.secure_aggregation import RandomBytes
from atoll.tree import Tree

_DIGEST_BYTES = 32
_AGAIN = "The list was changed on its way: begin a new round."


@dataclass(frozen=True)
class CodedMasks:
    """How masks are coded: U pieces, of which T are noise, over a field that holds the sum of all vectors."""

    field: MersenneField
    bits: int
    pieces: int  # U: so many sums of shares recover the mask
    noise: int  # T: so many shares say nothing of a mask

    @property
    def parts(self) -> int:
        return self.pieces - self.noise

    @property
    def dtype(self) -> torch.dtype:
        """Of elements as they travel: the wire packs those of 31 bits."""
        return torch.int32 if self.field.exponent == 31 else NUMBERS

    def width(self, size: int) -> int:
        """Elements of one share."""
        return -(-size // self.parts)

    def encode(self, mask: Elements, noise_seed: bytes, holders: int) -> Elements:
        """(holders, width): one share for each."""
        width = self.width(len(mask))
        pieces = np.zeros((self.pieces, width), np.uint64)
        pieces[: self.parts].reshape(-1)[: len(mask)] = mask
        pieces[self.parts :] = self.field.mask(noise_seed, self.noise * width).reshape(self.noise, width)
        return self.field.matmul(encoding_matrix(self.field, self.pieces, holders), pieces)

    def decode(self, shares: Elements, holders: Sequence[int], size: int) -> Elements:
        """The vector behind the shares of as many holders as there are pieces."""
        matrix = decoding_matrix(self.field, self.pieces, self.parts, holders)
        return self.field.matmul(matrix, shares).reshape(-1)[:size]

    def to_tensor(self, elements: Elements) -> Tensor:
        return torch.from_numpy(elements.astype(np.int64)).to(self.dtype)

    def to_elements(self, x: Tensor, where: str) -> Elements:
        if len(x) and not 0 <= int(x.min()) <= int(x.max()) < self.field.prime:
            raise ProtocolError(f"{where}: numbers outside the field. They are from 0 to 2^{self.field.exponent} - 2.")
        return x.numpy().astype(np.uint64)

    def to_bytes(self, share: Elements) -> bytes:
        return share.astype(self._word).tobytes()

    def from_bytes(self, text: bytes) -> Elements:
        return np.frombuffer(text, self._word).astype(np.uint64)

    @property
    def _word(self) -> str:
        return "<u4" if self.field.exponent == 31 else "<u8"


def light_client(coding_of: Callable[[int], CodedMasks], id: int, own: Tree, random: RandomBytes) -> Client:
    """One client, from its key to the sum of its shares of the survivors' masks."""
    where = f"client {id}"
    session, clients = read_start((yield None), where)
    coding = coding_of(clients)
    vector = words(own["vector"], coding.bits, f"{where}, vector").astype(np.uint64)
    mailbox = Mailbox(id, session, KeyPair.draw(random))

    mailbox.meet((yield mailbox.advertisement()), coding.pieces, clients)
    mask = coding.field.mask(random(SEED_BYTES), len(vector))
    coded = coding.encode(mask, random(SEED_BYTES), len(mailbox.publics))
    texts = {peer: coding.to_bytes(row) for peer, row in zip(mailbox.publics, coded, strict=True)}
    opened = {id: texts.pop(id)}
    boxes = yield mailbox.sealed("coded", texts)
    opened |= mailbox.open(boxes, len(opened[id]), list(mailbox.publics))
    enough(len(opened), coding.pieces, where, "clients sent shares")

    message = yield say("masked", session, vector=coding.to_tensor(coding.field.add(vector, mask)))
    body = read(message, "survivors", where, session, ids=(NUMBERS, (None,)))
    alive = read_ids(body["ids"], where, among=list(opened), me=id)
    enough(len(alive), coding.pieces, where, "clients are said to be left")
    total = np.zeros(coding.width(len(vector)), np.uint64)
    for peer in alive:
        total = coding.field.add(total, coding.from_bytes(opened[peer]))
    yield say("recovered", session, share=coding.to_tensor(total), over=byte_row(_digest(session, alive)))
    raise ProtocolError(f"{where}: a message after its shares were revealed. It answers once in a round.")


def light_server(coding: CodedMasks, ids: Sequence[int], random: RandomBytes) -> Server:
    """The server, from a session's number to the sum of those whose vectors arrived."""
    session, least = random(SESSION_BYTES), coding.pieces
    keys = read_all((yield begin(session, ids)), "keys", session, ids, least, public=(BYTES, (KEY_BYTES,)))
    holders = list(keys)
    others = {id: [other for other in holders if other != id] for id in holders}
    coded = read_all((yield introduce(session, keys)), "coded", session, holders, least, **BOXES)
    boxes = relay(session, coded, others)
    vectors = read_all((yield boxes), "masked", session, list(coded), least, vector=(coding.dtype, (None,)))
    total = np.zeros(one_length(vectors), np.uint64)
    for id, body in vectors.items():
        total = coding.field.add(total, coding.to_elements(body["vector"], f"server, from client {id}"))

    alive = list(vectors)
    question = dict.fromkeys(alive, say("survivors", session, ids=id_row(alive)))
    share = (coding.dtype, (coding.width(len(total)),))
    fields: Fields = {"share": share, "over": (BYTES, (_DIGEST_BYTES,))}
    answers = read_all((yield question), "recovered", session, alive, least, **fields)
    for id, body in answers.items():
        if not compare_digest(body["over"].numpy().tobytes(), _digest(session, alive)):
            raise ProtocolError(f"server, from client {id}: it added up shares of others than those left. {_AGAIN}")
    used = list(answers)[: coding.pieces]
    shares = np.stack([coding.to_elements(answers[id]["share"], f"server, from client {id}") for id in used])
    masks = coding.decode(shares, [holders.index(id) for id in used], len(total))
    result = coding.field.subtract(total, masks) & np.uint64((1 << coding.bits) - 1)
    return {"sum": torch.from_numpy(result.astype(np.int64)), "ids": id_row(alive)}


def _digest(session: bytes, ids: Sequence[int]) -> bytes:
    """Of whose shares were added up."""
    return hashlib.sha256(session + b"".join(id.to_bytes(8, "little") for id in ids)).digest()
