"""Who takes part in a round, with a key for boxes each, and boxes from client to client that the server relays."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Message
from atoll.protocols.keys import KEY_BYTES
from atoll.protocols.message_parts import body_of, branch, distinct_ids, leaf, need, octets, to_tensor
from atoll.protocols.sealed_box import BoxKey, seal
from atoll.protocols.secure_aggregation import RandomBytes
from atoll.tree import Tree

DIGEST_BYTES = 32


class Member(NamedTuple):
    """What a client is in this round: its id, its key for boxes, where it draws from, and how many a sum needs."""

    id: int
    box: BoxKey
    random: RandomBytes
    least: int


def named_ids(me: Member, body: Tree) -> list[int]:
    """Whom the server names, as a client accepts it: itself among them, and enough of them."""
    ids = distinct_ids(body, "server")
    need(me.id in ids, f"client {me.id}: is asked to help with a sum that it is not in. The server must leave it out.")
    need(
        len(ids) >= me.least, f"client {me.id}: a sum of {len(ids)}, the threshold is {me.least}. Ask for a larger one."
    )
    return ids


def roster_of(me: Member, body: Tree) -> dict[int, bytes]:
    ids, keys = named_ids(me, body), leaf(body, "keys", torch.uint8, 2, "server")
    need(keys.shape == (len(ids), KEY_BYTES), f"client {me.id}: the roster has not one key for each client.")
    return {other: row.numpy().tobytes() for other, row in zip(ids, keys, strict=True)}


def seal_each(
    roster: Mapping[int, bytes], secrets: Sequence[bytes], context: bytes, random: RandomBytes
) -> dict[str, Tensor]:
    pairs = zip(roster.items(), secrets, strict=True)
    return {str(id): to_tensor(seal(key, secret, context + _id(id), random)) for (id, key), secret in pairs}


def open_box(me: Member, sealed: bytes, context: bytes) -> bytes:
    return me.box.open(sealed, context + _id(me.id))


def boxes_for(ids: Sequence[int], body: Tree, sender: str) -> dict[int, Tensor]:
    boxes = branch(body, "boxes", sender)
    need(boxes.keys() == {str(id) for id in ids}, f"{sender}: sealed the key for others than those it was asked to.")
    return {id: leaf(boxes, str(id), torch.uint8, 1, sender) for id in ids}


def roster_body(keys: Mapping[int, bytes]) -> Tree:
    return {"ids": torch.tensor(list(keys)), "keys": torch.stack([to_tensor(key) for key in keys.values()])}


def box_key_of(id: int, message: Message) -> bytes:
    key = octets(body_of(message, "box_key", f"client {id}"), "key", f"client {id}")
    need(len(key) == KEY_BYTES, f"client {id}: sent a key of {len(key)} bytes. One of X25519 has {KEY_BYTES}.")
    return key


def box_context(purpose: str, public: Tree, ids: Iterable[int]) -> bytes:
    """What a box is about: one homomorphic key, which is drawn for one round, and one list of clients."""
    return _digest(f"{purpose} {sorted(ids)}", public)


def digest_of(ciphertexts: Tree) -> bytes:
    """What a client's tag is of."""
    return _digest("ciphertexts", ciphertexts)


def _digest(purpose: str, public: Tree) -> bytes:
    digest = hashlib.sha256(purpose.encode())
    for path, x in sorted(tree.paths(public)):
        digest.update(f"/{path}/{x.dtype}/{tuple(x.shape)}/".encode() + x.numpy().tobytes())
    return digest.digest()


def _id(id: int) -> bytes:
    return id.to_bytes(8, "little")
