"""Aggregation under an additively homomorphic key: the server adds ciphertexts, and clients help it to the sum alone.

A client deals the key (the one with the smallest id that answers); the server relays boxes that only clients open:

| `key` | who has the private key | who decrypts | after its vector arrived |
|---|---|---|---|
| group | every client | two of those left, whose answers must agree | all but one may drop out |
| holder | the dealer | the dealer | all but the dealer may drop out |
| shared | a share each; the dealer forgets the whole | all together, the server combines | nobody may drop out |

Group is how BatchCrypt (Zhang et al., 2020) and FATE use Paillier across silos. All of this is against a server that
keeps to the protocol: one that swaps the clients' keys for its own, or has one ciphertext decrypted for the sum, is not
found out.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from atoll import tree
from atoll.core import Client, Message, Server
from atoll.errors import ProtocolError
from atoll.protocols.message_parts import body_of, branch, distinct_ids, leaf, need, octets, to_tensor, whole
from atoll.protocols.sealed_box import KEY_BYTES, BoxKey, seal
from atoll.protocols.secure_aggregation import RandomBytes, SecureAggregation
from atoll.protocols.slots import pack_residues, unpack_residues
from atoll.tree import Tree

KeyHolding: TypeAlias = Literal["group", "holder", "shared"]
Dealing: TypeAlias = Generator[Mapping[int, Message], Mapping[int, Message], "Dealt"]
Answer: TypeAlias = Generator[Mapping[int, Message], Mapping[int, Message], Tensor]
_DECRYPTORS = 2  # that are asked at once where everybody could: their answers are compared


class Dealt(NamedTuple):
    """What the server knows once there is a key."""

    dealer: int
    keys: dict[int, bytes]  # for boxes, of the whole roster
    public: Tree
    boxes: dict[int, Tensor]  # for everybody else: the private key, where the group has it


class Sum(NamedTuple):
    """Ciphertexts of the sum, of how many numbers, and whose vectors are in it."""

    ciphertexts: Tree
    numbers: int
    ids: list[int]


class HomomorphicAggregation(SecureAggregation):
    """Steps: keys for boxes; one client deals the homomorphic key; ciphertexts; [shares of the key;] decryption."""

    key: KeyHolding
    threshold: int  # vectors in the sum, at least

    @abstractmethod
    def draw_keys(self, clients: int, random: RandomBytes) -> tuple[Tree, bytes]:
        """A public key as it travels, and the private key."""

    @abstractmethod
    def encrypt(self, public: Tree, residues: Tensor, clients: int, random: RandomBytes) -> Tree:
        """Ciphertexts of residues, such that those of so many clients can be added."""

    @abstractmethod
    def add(self, public: Tree, uploads: Mapping[int, Tree], numbers: int, clients: int) -> Tree:
        """Ciphertexts of the sum, or a ProtocolError that names who sent something else."""

    @abstractmethod
    def decrypt(self, public: Tree, private: bytes, total: Tree, numbers: int, clients: int) -> Tensor:
        """The sum modulo 2^bits."""

    def split(self, private: bytes, shares: int, random: RandomBytes) -> list[bytes]:
        """Shares of the private key, of one length; where it can be shared."""
        raise NotImplementedError

    def decrypt_partly(self, public: Tree, share: bytes, total: Tree, numbers: int, clients: int) -> Tree:
        """What one share makes of the sum."""
        raise NotImplementedError

    def combine(self, public: Tree, partials: Mapping[int, Tree], numbers: int, clients: int) -> Tensor:
        """The sum modulo 2^bits from what all shares made of it."""
        raise NotImplementedError

    def least(self, clients: int) -> int:
        return self.threshold if self.key == "group" else clients

    def client(self, id: int, own: Tree, key: Tensor) -> Client:
        random, vector = self.random_bytes(key), own["vector"]
        box, private = BoxKey.draw(random), b""
        body_of((yield None), "begin", "server")
        message = yield Message("box_key", {"key": to_tensor(box.public)})
        context = b""
        if message.kind == "deal":
            roster = self._roster(message.body, id)
            public, private = self.draw_keys(len(roster), random)
            context, others = _context("key", public, roster), {i: k for i, k in roster.items() if i != id}
            content = private if self.key == "group" else b""  # an empty box still says which public key is meant
            boxes = _seal_each(others, [content] * len(others), context, random)
            message = yield Message("dealt", {"public": public, "boxes": boxes})
        body = body_of(message, "encrypt", "server")
        public, ids = branch(body, "public", "server"), self._ids(body, id)
        about = _context("key", public, ids)
        if private:
            need(context == about, f"client {id}: the server changed the key or the roster. It has to relay them.")
        else:
            private = _open(box, octets(body, "box", "server"), about, id)
        upload = {"ciphertexts": self.encrypt(public, vector, len(ids), random), "numbers": torch.tensor(len(vector))}
        message = yield Message("ciphertexts", {**upload, "about": to_tensor(about)})
        if message.kind == "share":
            roster = self._roster(message.body, id)
            need(self.key == "shared" and bool(private), f"client {id}: has no key to share. The server asks for it.")
            need(roster.keys() <= set(ids), f"client {id}: is to share the key with clients that did not encrypt.")
            shares, private = self.split(private, len(roster), random), b""  # from here on the key is nowhere whole
            boxes = _seal_each(roster, shares, _context("share", public, roster), random)
            message = yield Message("shares", {"boxes": boxes})
        body = body_of(message, "decrypt", "server")
        in_sum, total = self._ids(body, id), branch(body, "total", "server")
        need(set(in_sum) <= set(ids), f"client {id}: the sum is of clients that did not encrypt.")
        about = _context("sum", total, in_sum)
        if self.key == "shared":
            share = _open(box, octets(body, "box", "server"), _context("share", public, in_sum), id)
            partial = self.decrypt_partly(public, share, total, len(vector), len(ids))
            yield Message("partial", {**partial, "about": to_tensor(about)})
        else:
            need(bool(private), f"client {id}: has no key to decrypt with. The server asks for it.")
            residues = self.decrypt(public, private, total, len(vector), len(ids))
            packed = torch.from_numpy(pack_residues(residues.numpy(), self.bits))
            yield Message("residues", {"residues": packed, "about": to_tensor(about)})

    def server(self, ids: Sequence[int], key: Tensor) -> Server:
        dealt = yield from self._deal(ids)
        roster = sorted(dealt.keys)
        body: Tree = {"ids": torch.tensor(roster), "public": dealt.public}
        boxes = {id: {"box": box} for id, box in dealt.boxes.items()}
        uploads = yield {id: Message("encrypt", {**body, **boxes.get(id, {})}) for id in roster}
        self._enough(uploads, "vectors")
        total = self._sum(dealt, uploads)
        residues = yield from (self._combined if self.key == "shared" else self._decrypted)(dealt, total)
        return {"sum": residues, "ids": torch.tensor(total.ids)}

    def _deal(self, ids: Sequence[int]) -> Dealing:
        """Keys for boxes from everybody, then a homomorphic key from the first who answers."""
        keys = yield {id: Message("begin", {}) for id in ids}
        roster = {id: _box_key(id, keys[id]) for id in sorted(keys)}
        while True:
            self._enough(roster, "keys")
            dealer = min(roster)
            answers = yield {dealer: Message("deal", _roster_body(roster))}
            if dealer in answers:
                return self._dealt(dealer, answers[dealer], roster)
            del roster[dealer]

    def _dealt(self, dealer: int, message: Message, roster: dict[int, bytes]) -> Dealt:
        body, sender = body_of(message, "dealt", f"client {dealer}"), f"client {dealer}"
        others = [id for id in roster if id != dealer]
        return Dealt(dealer, roster, branch(body, "public", sender), _boxes_for(others, body, sender))

    def _sum(self, dealt: Dealt, uploads: Mapping[int, Message]) -> Sum:
        bodies = _answers(uploads, "ciphertexts", _context("key", dealt.public, dealt.keys))
        lengths = {id: whole(body, "numbers", f"client {id}") for id, body in bodies.items()}
        numbers = next(iter(lengths.values()))
        need(set(lengths.values()) == {numbers}, f"homomorphic: vectors of {lengths} numbers. All need the same model.")
        ciphertexts = {id: branch(body, "ciphertexts", f"client {id}") for id, body in bodies.items()}
        return Sum(self.add(dealt.public, ciphertexts, numbers, len(dealt.keys)), numbers, list(bodies))

    def _decrypted(self, dealt: Dealt, total: Sum) -> Answer:
        """Some of those who have the key decrypt; who answers at once must say the same."""
        request = Message("decrypt", {"ids": torch.tensor(total.ids), "total": total.ciphertexts})
        waiting = total.ids if self.key == "group" else [dealt.dealer]
        while waiting:
            asked, waiting = waiting[:_DECRYPTORS], waiting[_DECRYPTORS:]
            answers = yield dict.fromkeys(asked, request)
            bodies = _answers(answers, "residues", _context("sum", total.ciphertexts, total.ids))
            sums = [octets(body, "residues", f"client {id}") for id, body in bodies.items()]
            if sums:
                need(len(set(sums)) == 1, f"homomorphic: clients {asked} decrypt one sum to two. One of them is wrong.")
                packed = np.frombuffer(sums[0], np.uint8)
                return torch.from_numpy(unpack_residues(packed, self.bits, total.numbers))
        raise ProtocolError("homomorphic: nobody who has the key is left to decrypt the sum. Begin again.")

    def _combined(self, dealt: Dealt, total: Sum) -> Answer:
        """The dealer shares its key among those in the sum; every one of them must answer."""
        dealer, keys = dealt.dealer, {id: dealt.keys[id] for id in total.ids}
        answers = yield {dealer: Message("share", _roster_body(keys))}
        need(
            dealer in answers,
            f"homomorphic: client {dealer} dealt the key and is gone before it shared it. Begin again.",
        )
        boxes = _boxes_for(total.ids, body_of(answers[dealer], "shares", f"client {dealer}"), f"client {dealer}")
        body = {"ids": torch.tensor(total.ids), "total": total.ciphertexts}
        partials = yield {id: Message("decrypt", {**body, "box": boxes[id]}) for id in keys}
        gone = sorted(keys.keys() - partials.keys())
        need(not gone, f"homomorphic: clients {gone} are gone with their shares of the key. key = 'group' would go on.")
        bodies = _answers(partials, "partial", _context("sum", total.ciphertexts, total.ids))
        return self.combine(dealt.public, bodies, total.numbers, len(dealt.keys))

    def _enough(self, left: Mapping[int, object], what: str) -> None:
        need(
            len(left) >= self.threshold,
            f"homomorphic: {len(left)} {what} came, the threshold is {self.threshold}. Begin again.",
        )

    def _ids(self, body: Tree, id: int) -> list[int]:
        """Whom the server names, as a client accepts it: itself among them, and enough of them."""
        ids = distinct_ids(body, "server")
        need(id in ids, f"client {id}: is asked to help with a sum that it is not in. The server must leave it out.")
        need(len(ids) >= self.threshold, f"client {id}: a sum of {len(ids)}, the threshold is {self.threshold}.")
        return ids

    def _roster(self, body: Tree, id: int) -> dict[int, bytes]:
        ids, keys = self._ids(body, id), leaf(body, "keys", torch.uint8, 2, "server")
        need(keys.shape == (len(ids), KEY_BYTES), f"client {id}: the roster has not one key for each client.")
        return {other: row.numpy().tobytes() for other, row in zip(ids, keys, strict=True)}


def _seal_each(
    roster: Mapping[int, bytes], secrets: Sequence[bytes], context: bytes, random: RandomBytes
) -> dict[str, Tensor]:
    pairs = zip(roster.items(), secrets, strict=True)
    return {str(id): to_tensor(seal(key, secret, context + _id(id), random)) for (id, key), secret in pairs}


def _open(box: BoxKey, sealed: bytes, context: bytes, id: int) -> bytes:
    return box.open(sealed, context + _id(id))


def _boxes_for(ids: Sequence[int], body: Tree, sender: str) -> dict[int, Tensor]:
    boxes = branch(body, "boxes", sender)
    need(boxes.keys() == {str(id) for id in ids}, f"{sender}: sealed the key for others than those it was asked to.")
    return {id: leaf(boxes, str(id), torch.uint8, 1, sender) for id in ids}


def _roster_body(keys: Mapping[int, bytes]) -> Tree:
    return {"ids": torch.tensor(list(keys)), "keys": torch.stack([to_tensor(key) for key in keys.values()])}


def _box_key(id: int, message: Message) -> bytes:
    key = octets(body_of(message, "box_key", f"client {id}"), "key", f"client {id}")
    need(len(key) == KEY_BYTES, f"client {id}: sent a key of {len(key)} bytes. One of X25519 has {KEY_BYTES}.")
    return key


def _answers(messages: Mapping[int, Message], kind: str, about: bytes) -> dict[int, Tree]:
    """Bodies of clients' answers, which must be about this key or this sum: one of an earlier round is refused."""
    bodies = {id: body_of(messages[id], kind, f"client {id}") for id in sorted(messages)}
    for id, body in bodies.items():
        about_it = octets(body, "about", f"client {id}") == about
        need(about_it, f"client {id}: its {kind} are for another key, roster or sum. Were they of an earlier round?")
    return bodies


def _context(purpose: str, public: Tree, ids: Iterable[int]) -> bytes:
    """What a box is about: one homomorphic key, which is drawn for one round, and one list of clients."""
    digest = hashlib.sha256(f"{purpose} {sorted(ids)}".encode())
    for path, x in sorted(tree.paths(public)):
        digest.update(f"/{path}/{x.dtype}/{tuple(x.shape)}/".encode() + x.numpy().tobytes())
    return digest.digest()


def _id(id: int) -> bytes:
    return id.to_bytes(8, "little")
