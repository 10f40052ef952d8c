"""Sealed boxes from client to client, which the server passes on and cannot open."""

from __future__ import annotations

import hmac
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from atoll.core import Message
from atoll.errors import ProtocolError
from atoll.protocols.keys import KEY_BYTES, TAG_BYTES, KeyPair, byte_row, byte_rows, derive, seal, unseal
from atoll.protocols.message_fields import BYTES, NUMBERS, Fields, enough, id_row, read, read_ids, say
from atoll.tree import Tree

BOXES: Fields = {"ids": (NUMBERS, (None,)), "boxes": (BYTES, (None, None))}  # from or for each of these clients


@dataclass
class Mailbox:
    """A client's side: the keys of those that it writes to, and what it gets from them."""

    id: int
    session: bytes
    key: KeyPair = field(repr=False)
    publics: dict[int, bytes] = field(default_factory=dict)
    bound: dict[int, bytes] = field(default_factory=dict)  # what else both must know of a client, or no box opens
    secrets: dict[int, bytes] = field(default_factory=dict, repr=False)

    @property
    def where(self) -> str:
        return f"client {self.id}"

    def advertisement(self) -> Message:
        return say("keys", self.session, public=byte_row(self.key.public))

    def meet(self, message: Message, least: int, most: int) -> None:
        """Learn the keys of all; refuse a list that is too short, or in which somebody has two names."""
        fields: Fields = {"ids": (NUMBERS, (None,)), "public": (BYTES, (None, KEY_BYTES))}
        body = read(message, "peers", self.where, self.session, **fields)
        ids = read_ids(body["ids"], self.where, me=self.id)
        enough(len(ids), least, self.where, "clients share keys")
        rows = [row.tobytes() for row in body["public"].numpy()]
        if len(rows) != len(ids) or len(set(rows)) < len(rows) or len(ids) > most:
            raise ProtocolError(f"{self.where}: {len(ids)} clients and {len(set(rows))} keys of theirs. Each has one.")
        self.publics = dict(zip(ids, rows, strict=True))
        if not hmac.compare_digest(self.publics[self.id], self.key.public):
            raise ProtocolError(f"{self.where}: is listed with a key that is not its own. Do not trust the server.")

    def sealed(self, kind: str, texts: Mapping[int, bytes]) -> Message:
        """A box for each of these clients; all texts have one length."""
        receivers = sorted(texts)
        boxes = [self.seal(peer, texts[peer]) for peer in receivers]
        width = len(texts[receivers[0]]) + TAG_BYTES if receivers else TAG_BYTES
        return say(kind, self.session, ids=id_row(receivers), boxes=byte_rows(boxes, width))

    def open(self, message: Message, width: int, senders: Sequence[int]) -> dict[int, bytes]:
        """What each of those who sent something wrote, texts of `width` bytes; `senders` may have."""
        fields: Fields = {"ids": (NUMBERS, (None,)), "boxes": (BYTES, (None, width + TAG_BYTES))}
        body = read(message, "boxes", self.where, self.session, **fields)
        ids = read_ids(body["ids"], self.where, among=[*senders, self.id], me=self.id)
        others = [id for id in ids if id != self.id]
        if len(body["boxes"]) != len(others):
            raise ProtocolError(f"{self.where}: {len(body['boxes'])} boxes of {len(others)} others. Was it cut?")
        return {peer: self.unseal(peer, box.tobytes()) for peer, box in zip(others, body["boxes"].numpy(), strict=True)}

    def seal(self, peer: int, text: bytes) -> bytes:
        key = derive(self._secret(peer), "shares", self.session, self.id, peer)
        return seal(key, text, self._agreed(self.id, peer), self.id, peer)

    def unseal(self, peer: int, box: bytes) -> bytes:
        key = derive(self._secret(peer), "shares", self.session, peer, self.id)
        return unseal(key, box, self._agreed(peer, self.id), peer, self.id)

    def _secret(self, peer: int) -> bytes:
        """Agreed on once, for both directions."""
        if peer not in self.secrets:
            self.secrets[peer] = self.key.secret_with(self.publics[peer])
        return self.secrets[peer]

    def _agreed(self, sender: int, receiver: int) -> bytes:
        return self.session + self.bound.get(sender, b"") + self.bound.get(receiver, b"")


def introduce(session: bytes, keys: Mapping[int, Tree]) -> dict[int, Message]:
    """Everybody's key to everybody."""
    publics = torch.stack([body["public"] for body in keys.values()])
    return dict.fromkeys(keys, say("peers", session, ids=id_row(list(keys)), public=publics))


def relay(session: bytes, sent: Mapping[int, Tree], receivers: Mapping[int, Sequence[int]]) -> dict[int, Message]:
    """To each who sent boxes, those that are for it, as they came. `receivers` says whom each had to write to."""
    for id, body in sent.items():
        if body["ids"].tolist() != list(receivers[id]) or len(body["boxes"]) != len(receivers[id]):
            raise ProtocolError(f"server, from client {id}: its boxes are not for whom they should be. Was it cut?")
    widths = {body["boxes"].shape[1] for body in sent.values()}
    if len(widths) > 1:
        raise ProtocolError(f"server: boxes of {min(widths)} to {max(widths)} bytes. All have vectors of one length.")
    inboxes: dict[int, list[int]] = {id: [] for id in sent}
    for sender in sent:
        for receiver in receivers[sender]:
            if receiver in inboxes:
                inboxes[receiver].append(sender)
    boxes = {id: body["boxes"].numpy() for id, body in sent.items()}
    return {id: _delivery(session, id, senders, boxes, receivers, *widths) for id, senders in inboxes.items()}


def _delivery(
    session: bytes,
    id: int,
    senders: Sequence[int],
    boxes: Mapping[int, np.ndarray],  # type: ignore[type-arg]
    receivers: Mapping[int, Sequence[int]],
    width: int,
) -> Message:
    rows = [boxes[sender][bisect_left(receivers[sender], id)] for sender in senders]
    stacked = torch.from_numpy(np.stack(rows)) if rows else torch.zeros(0, width, dtype=BYTES)
    return say("boxes", session, ids=id_row(sorted([*senders, id])), boxes=stacked)
