"""Aggregation under an additively homomorphic key: the server adds ciphertexts, and clients help it to the sum alone.

A client deals the key (the one with the smallest id that answers); the server relays boxes that only clients open:

| `key` | who has the private key | who decrypts | after its vector arrived |
|---|---|---|---|
| group | every client | two of those left, whose answers must agree | all but one may drop out |
| holder | the dealer | the dealer | all but the dealer may drop out |
| shared | a share each; the dealer forgets the whole | all together, the server combines | nobody may drop out |

Group is how BatchCrypt (Zhang et al., 2020) and FATE use Paillier across silos. All of this is against a server that
keeps to the protocol: one that swaps the clients' keys for its own, or has one ciphertext decrypted for the sum, is not
found out. On the line, however, nobody changes a group's ciphertexts unseen: each client tags its own by a key that
follows from the private one, and who decrypts compares the tags with what the server says that it added up.
"""

from __future__ import annotations

import hmac
from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from atoll.core import Client, Message, Server
from atoll.errors import ConfigError, ProtocolError
from atoll.protocols.keys import hkdf
from atoll.protocols.message_parts import body_of, branch, leaf, need, octets, own_residues, to_tensor, whole
from atoll.protocols.rosters import (
    DIGEST_BYTES,
    Member,
    box_context,
    box_key_of,
    boxes_for,
    digest_of,
    named_ids,
    open_box,
    roster_body,
    roster_of,
    seal_each,
)
from atoll.protocols.sealed_box import BoxKey
from atoll.protocols.secure_aggregation import RandomBytes, SecureAggregation
from atoll.protocols.slots import pack_residues, unpack_residues
from atoll.protocols.threshold import threshold_of
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


class CipherSum(NamedTuple):
    """Ciphertexts of the sum, of how many numbers, and whose vectors are in it."""

    ciphertexts: Tree
    numbers: int
    ids: list[int]
    proofs: Tree  # digests of what came from each, and the tags with which it came: that nobody changed it on its way


@dataclass(frozen=True)
class Keyed:
    """What a client knows once there is a key; `private` is empty where it has none, and never printed."""

    public: Tree
    private: bytes = field(repr=False)
    ids: list[int]
    about: bytes  # the key and the roster


class HomomorphicAggregation(SecureAggregation):
    """Steps: keys for boxes; one client deals the homomorphic key; ciphertexts; [shares of the key;] decryption."""

    key_holders: KeyHolding
    threshold: float  # vectors in the sum, at least: see threshold.py

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
        raise self._unshared()

    def decrypt_partly(self, public: Tree, share: bytes, total: Tree, numbers: int, clients: int) -> Tree:
        """What one share makes of the sum."""
        raise self._unshared()

    def combine(self, public: Tree, partials: Mapping[int, Tree], numbers: int, clients: int) -> Tensor:
        """The sum modulo 2^bits from what all shares made of it."""
        raise self._unshared()

    def _unshared(self) -> ConfigError:
        return ConfigError(f"secure.protocol.key_holders: {type(self).__name__} has no shares of its private key.")

    def more_than_the_sum(self) -> str:
        if self.key_holders == "shared":
            return ""
        return "who decrypts sees the sum before it is reduced, and with it how many numbers were negative"

    def least(self, clients: int) -> int:
        return threshold_of(self.threshold, clients) if self.key_holders == "group" else clients

    def client(self, id: int, own: Tree, key: Tensor) -> Client:
        random, vector = self.random_bytes(key), own_residues(own, self.bits, id)
        clients = whole(body_of((yield None), "begin", "server"), "clients", "server")
        me = Member(id, BoxKey.draw(random), random, threshold_of(self.threshold, clients))
        message = yield Message("box_key", {"key": to_tensor(me.box.public)})
        dealt = None
        if message.kind == "deal":
            dealt, answer = self._draw_for(me, message.body)
            message = yield answer
        keyed = self._keyed(me, body_of(message, "encrypt", "server"), dealt)
        ciphertexts = self.encrypt(keyed.public, vector, len(keyed.ids), random)
        numbers, about = torch.tensor(len(vector)), to_tensor(keyed.about)
        upload: Tree = {"ciphertexts": ciphertexts, "numbers": numbers, "about": about}
        if self.key_holders == "group":
            upload["tag"] = to_tensor(_tag(keyed, id, digest_of(ciphertexts)))
        message = yield Message("ciphertexts", upload)
        if message.kind == "share":
            answer = self._share(me, keyed, message.body)
            keyed, dealt = replace(keyed, private=b""), None  # from here on the key is nowhere whole
            message = yield answer
        yield self._decrypt_for(me, keyed, body_of(message, "decrypt", "server"), len(vector))

    def _draw_for(self, me: Member, body: Tree) -> tuple[Keyed, Message]:
        """The dealer's keys, and a box for everybody else: the private key, or an empty one about the public key."""
        roster = roster_of(me, body)
        public, private = self.draw_keys(len(roster), me.random)
        keyed = Keyed(public, private, list(roster), box_context("key", public, roster))
        others = {id: key for id, key in roster.items() if id != me.id}
        content = private if self.key_holders == "group" else b""
        boxes = seal_each(others, [content] * len(others), keyed.about, me.random)
        return keyed, Message("dealt", {"public": public, "boxes": boxes})

    def _keyed(self, me: Member, body: Tree, dealt: Keyed | None) -> Keyed:
        """The key of this round, which the dealer's box vouches for, or the dealer itself."""
        public, ids = branch(body, "public", "server"), named_ids(me, body)
        about = box_context("key", public, ids)
        if dealt is None:
            return Keyed(public, open_box(me, octets(body, "box", "server"), about), ids, about)
        need(dealt.about == about, f"client {me.id}: the server changed the key or the roster. It has to relay them.")
        return replace(dealt, ids=ids)

    def _share(self, me: Member, keyed: Keyed, body: Tree) -> Message:
        roster = roster_of(me, body)
        has_key = self.key_holders == "shared" and bool(keyed.private)
        need(has_key, f"client {me.id}: has no key to share. The server asks for it.")
        need(roster.keys() <= set(keyed.ids), f"client {me.id}: is to share the key with clients that did not encrypt.")
        shares = self.split(keyed.private, len(roster), me.random)
        boxes = seal_each(roster, shares, box_context("share", keyed.public, roster), me.random)
        return Message("shares", {"boxes": boxes})

    def _decrypt_for(self, me: Member, keyed: Keyed, body: Tree, numbers: int) -> Message:
        """A client's part in the decryption of the sum."""
        ids, total = named_ids(me, body), branch(body, "total", "server")
        need(set(ids) <= set(keyed.ids), f"client {me.id}: the sum is of clients that did not encrypt.")
        about, clients = to_tensor(box_context("sum", total, ids)), len(keyed.ids)
        if self.key_holders == "shared":
            share = open_box(me, octets(body, "box", "server"), box_context("share", keyed.public, ids))
            partial = self.decrypt_partly(keyed.public, share, total, numbers, clients)
            return Message("partial", {**partial, "about": about})
        need(bool(keyed.private), f"client {me.id}: has no key to decrypt with. The server asks for it.")
        if self.key_holders == "group":
            _check_tags(me, keyed, body, ids)
        residues = self.decrypt(keyed.public, keyed.private, total, numbers, clients)
        packed = torch.from_numpy(pack_residues(residues.numpy(), self.bits))
        return Message("residues", {"residues": packed, "about": about})

    def server(self, ids: Sequence[int], key: Tensor) -> Server:
        least = threshold_of(self.threshold, len(ids))
        dealt = yield from self._deal(ids, least)
        roster = sorted(dealt.keys)
        body: Tree = {"ids": torch.tensor(roster), "public": dealt.public}
        boxes = {id: {"box": box} for id, box in dealt.boxes.items()}
        uploads = yield {id: Message("encrypt", {**body, **boxes.get(id, {})}) for id in roster}
        _enough(uploads, least, "vectors")
        total = self._sum(dealt, uploads)
        residues = yield from (self._combined if self.key_holders == "shared" else self._decrypted)(dealt, total)
        return {"sum": residues, "ids": torch.tensor(total.ids)}

    def _deal(self, ids: Sequence[int], least: int) -> Dealing:
        """Keys for boxes from everybody, then a homomorphic key from the first who answers."""
        keys = yield {id: Message("begin", {"clients": torch.tensor(len(ids))}) for id in ids}
        roster = {id: box_key_of(id, keys[id]) for id in sorted(keys)}
        while True:
            _enough(roster, least, "keys")
            dealer = min(roster)
            answers = yield {dealer: Message("deal", roster_body(roster))}
            if dealer in answers:
                return _dealt(dealer, answers[dealer], roster)
            del roster[dealer]

    def _sum(self, dealt: Dealt, uploads: Mapping[int, Message]) -> CipherSum:
        bodies = _answers(uploads, "ciphertexts", box_context("key", dealt.public, dealt.keys))
        lengths = {id: whole(body, "numbers", f"client {id}") for id, body in bodies.items()}
        numbers = next(iter(lengths.values()))
        need(set(lengths.values()) == {numbers}, f"homomorphic: vectors of {lengths} numbers. All need the same model.")
        ciphertexts = {id: branch(body, "ciphertexts", f"client {id}") for id, body in bodies.items()}
        proofs: Tree = {}
        if self.key_holders == "group":
            proofs = {
                "digests": torch.stack([to_tensor(digest_of(upload)) for upload in ciphertexts.values()]),
                "tags": torch.stack([to_tensor(_tag_of(id, body)) for id, body in bodies.items()]),
            }
        return CipherSum(self.add(dealt.public, ciphertexts, numbers, len(dealt.keys)), numbers, list(bodies), proofs)

    def _decrypted(self, dealt: Dealt, total: CipherSum) -> Answer:
        """Some of those who have the key decrypt; who answers at once must say the same."""
        request = Message("decrypt", {"ids": torch.tensor(total.ids), "total": total.ciphertexts, **total.proofs})
        waiting = total.ids if self.key_holders == "group" else [dealt.dealer]
        while waiting:
            asked, waiting = waiting[:_DECRYPTORS], waiting[_DECRYPTORS:]
            answers = yield dict.fromkeys(asked, request)
            bodies = _answers(answers, "residues", box_context("sum", total.ciphertexts, total.ids))
            sums = [octets(body, "residues", f"client {id}") for id, body in bodies.items()]
            if sums:
                need(len(set(sums)) == 1, f"homomorphic: clients {asked} decrypt one sum to two. One of them is wrong.")
                packed = np.frombuffer(sums[0], np.uint8)
                return torch.from_numpy(unpack_residues(packed, self.bits, total.numbers))
        raise ProtocolError("homomorphic: nobody who has the key is left to decrypt the sum. Begin again.")

    def _combined(self, dealt: Dealt, total: CipherSum) -> Answer:
        """The dealer shares its key among those in the sum; every one of them must answer."""
        dealer, keys = dealt.dealer, {id: dealt.keys[id] for id in total.ids}
        answers = yield {dealer: Message("share", roster_body(keys))}
        need(
            dealer in answers,
            f"homomorphic: client {dealer} dealt the key and is gone before it shared it. Begin again.",
        )
        boxes = boxes_for(total.ids, body_of(answers[dealer], "shares", f"client {dealer}"), f"client {dealer}")
        body = {"ids": torch.tensor(total.ids), "total": total.ciphertexts}
        partials = yield {id: Message("decrypt", {**body, "box": boxes[id]}) for id in keys}
        gone = sorted(keys.keys() - partials.keys())
        need(not gone, f"homomorphic: clients {gone} are gone with their shares of the key. key = 'group' would go on.")
        bodies = _answers(partials, "partial", box_context("sum", total.ciphertexts, total.ids))
        return self.combine(dealt.public, bodies, total.numbers, len(dealt.keys))


def _tag(keyed: Keyed, id: int, digest: bytes) -> bytes:
    """Of a client's ciphertexts, by a key that follows from the private one: the server and the line do not have it."""
    key = hkdf(keyed.private, keyed.about, b"atoll ciphertexts")
    return hmac.digest(key, id.to_bytes(8, "little") + digest, "sha256")


def _tag_of(id: int, body: Tree) -> bytes:
    tag = octets(body, "tag", f"client {id}")
    need(len(tag) == DIGEST_BYTES, f"client {id}: sent a tag of {len(tag)} bytes. It has {DIGEST_BYTES}.")
    return tag


def _check_tags(me: Member, keyed: Keyed, body: Tree, ids: Sequence[int]) -> None:
    """What the server added up is what clients sent, as far as it says what it added up."""
    digests, tags = (leaf(body, name, torch.uint8, 2, "server") for name in ("digests", "tags"))
    fit = digests.shape == tags.shape == (len(ids), DIGEST_BYTES)
    need(fit, f"client {me.id}: has not a digest and a tag of each client. The server has to relay them.")
    for id, digest, tag in zip(ids, digests.numpy(), tags.numpy(), strict=True):
        same = hmac.compare_digest(_tag(keyed, id, digest.tobytes()), tag.tobytes())
        need(same, f"client {me.id}: the ciphertexts of client {id} are not those that it sent. Begin a new round.")


def _enough(left: Mapping[int, object], least: int, what: str) -> None:
    need(len(left) >= least, f"homomorphic: {len(left)} {what} came, the threshold is {least}. Begin again.")


def _dealt(dealer: int, message: Message, roster: dict[int, bytes]) -> Dealt:
    sender, others = f"client {dealer}", [id for id in roster if id != dealer]
    body = body_of(message, "dealt", sender)
    return Dealt(dealer, roster, branch(body, "public", sender), boxes_for(others, body, sender))


def _answers(messages: Mapping[int, Message], kind: str, about: bytes) -> dict[int, Tree]:
    """Bodies of clients' answers, which must be about this key or this sum: one of an earlier round is refused."""
    bodies = {id: body_of(messages[id], kind, f"client {id}") for id in sorted(messages)}
    for id, body in bodies.items():
        about_it = octets(body, "about", f"client {id}") == about
        need(about_it, f"client {id}: its {kind} are for another key, roster or sum. Were they of an earlier round?")
    return bodies
