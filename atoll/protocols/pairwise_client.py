"""The client's side of pairwise masks: keys, shares, a masked vector, and one answer about each neighbour."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from atoll.core import Client, Message
from atoll.errors import ProtocolError
from atoll.protocols import masks, shamir
from atoll.protocols.graphs import Graph
from atoll.protocols.keys import KEY_BYTES, SIGNATURE_BYTES, Identity, KeyPair, byte_row, byte_rows, derive, hkdf
from atoll.protocols.mailbox import Mailbox
from atoll.protocols.message_fields import BYTES, NUMBERS, Fields, enough, read, read_ids, read_start, say
from atoll.protocols.secure_aggregation import Agreeing, RandomBytes
from atoll.tree import Tree

Shares = dict[int, tuple[bytes, bytes]]  # of each neighbour: (of its private mask's seed, of its mask key)


class Settings(Protocol):
    """What both sides need to know of the protocol."""

    bits: int

    def graph(self, clients: int) -> Graph: ...
    def checks_consistency(self) -> bool: ...
    def pair_seed(self, key: Agreeing, public: bytes, session: bytes, id: int, peer: int) -> bytes: ...
    def add_mask(self, total: masks.Words, seed: bytes) -> None: ...
    def subtract_mask(self, total: masks.Words, seed: bytes) -> None: ...


def pairwise_client(settings: Settings, id: int, own: Tree, random: RandomBytes) -> Client:
    """One client, from its keys to its shares of others' secrets. It answers each step once."""
    where = f"client {id}"
    vector = masks.words(own["vector"], settings.bits, f"{where}, vector")
    identity = _identity(own, where) if settings.checks_consistency() else None

    session, clients = read_start((yield None), where)
    if identity is not None:
        _check_enrolled(clients, identity, where)
    mailbox = Mailbox(id, session, KeyPair.draw(random))
    me = _Member(id, session, clients, settings.graph(clients), KeyPair.draw(random), mailbox, identity)

    me.meet((yield me.advertisement()))
    seed = random(masks.SEED_BYTES)
    me.take_boxes((yield me.shares(seed, random)))
    settings.add_mask(vector, seed)
    for peer in me.shared:
        if peer != id:
            apply = settings.add_mask if id < peer else settings.subtract_mask
            apply(vector, settings.pair_seed(me.mask_key, me.publics[peer], session, id, peer))
    message = yield say("masked", session, vector=masks.residues(vector, settings.bits))
    if identity is not None:
        message = yield me.signature(message)
    yield me.revealed(message)
    raise ProtocolError(f"{where}: a message after its shares were revealed. It answers once in a round.")


def pair_seed(key: Agreeing, public: bytes, session: bytes, id: int, peer: int) -> bytes:
    """The seed of the mask between two clients: the same from both sides."""
    return derive(key.secret_with(public), "mask", session, min(id, peer), max(id, peer))


def commitment(seed: bytes, session: bytes) -> bytes:
    """Binds a client to the seed of its private mask, and says nothing of it: 32 bytes are too many to guess."""
    return hkdf(seed, session, b"atoll commitment")


def keys_text(session: bytes, clients: int, id: int, publics: bytes) -> bytes:
    """What a client signs of its keys, among so many clients."""
    return b"atoll keys\0" + session + clients.to_bytes(8, "little") + id.to_bytes(8, "little") + publics


def consistency_text(
    session: bytes, clients: int, mask_keys: Mapping[int, bytes], seal_keys: Mapping[int, bytes], alive: Sequence[int]
) -> bytes:
    """What a client signs of who is left, with all keys and the size of the cohort as it was told them."""
    told = hashlib.sha256(clients.to_bytes(8, "little"))
    for id, public in mask_keys.items():
        told.update(id.to_bytes(8, "little") + public + seal_keys[id])
    return b"atoll survivors\0" + session + told.digest() + b"".join(id.to_bytes(8, "little") for id in alive)


@dataclass
class _Member:
    """What a client knows, in the order in which it learns it."""

    id: int
    session: bytes
    clients: int  # that are asked: the threshold follows from it
    graph: Graph
    mask_key: KeyPair
    mailbox: Mailbox
    identity: Identity | None

    def __post_init__(self) -> None:
        self.where = f"client {self.id}"
        self.publics: dict[int, bytes] = {}  # mask keys of all that it shares with, itself among them
        self.shared: Shares = {}
        self.signed: list[int] | None = None

    def advertisement(self) -> Message:
        publics = self._own_publics
        fields = {"public": byte_row(publics).reshape(2, KEY_BYTES)}
        if self.identity is not None:
            fields["signature"] = byte_row(self.identity.sign(keys_text(self.session, self.clients, self.id, publics)))
        return say("keys", self.session, **fields)

    def meet(self, message: Message) -> None:
        """Learn the neighbours' keys; refuse lists that are too short, or in which somebody has two names."""
        fields: Fields = {"ids": (NUMBERS, (None,)), "public": (BYTES, (None, 2, KEY_BYTES))}
        if self.identity is not None:
            fields["signatures"] = (BYTES, (None, SIGNATURE_BYTES))
        body = read(message, "peers", self.where, self.session, **fields)
        ids = read_ids(body["ids"], self.where, me=self.id)
        if any(len(body[name]) != len(ids) for name in fields) or len(ids) > min(self.graph.degree + 1, self.clients):
            raise ProtocolError(f"{self.where}: {len(ids)} neighbours and their keys do not fit. Was the list cut?")
        enough(len(ids), self.graph.threshold, self.where, "clients share keys")
        rows = dict(zip(ids, (row.tobytes() for row in body["public"].numpy()), strict=True))
        self.publics = {id: row[:KEY_BYTES] for id, row in rows.items()}
        self.mailbox.bound = self.publics  # a mask key that was changed on its way to one of two is noticed by both
        self.mailbox.publics = {id: row[KEY_BYTES:] for id, row in rows.items()}
        if len({*self.publics.values(), *self.mailbox.publics.values()}) < 2 * len(ids):
            raise ProtocolError(f"{self.where}: one key is in the list twice. Every client has two of its own.")
        if not hmac.compare_digest(rows[self.id], self._own_publics):
            raise ProtocolError(f"{self.where}: is listed with keys that are not its own. Do not trust the server.")
        if self.identity is not None:
            self._verify(ids, body["signatures"], lambda id: keys_text(self.session, self.clients, id, rows[id]))

    def shares(self, seed: bytes, random: RandomBytes) -> Message:
        """Of the private mask's seed and of the mask key, sealed for each neighbour; its own stay here."""
        secrets = [int.from_bytes(seed, "little"), int.from_bytes(self.mask_key.private, "little")]
        points = [id + 1 for id in self.publics]
        rows = zip(self.publics, shamir.split(secrets, points, self.graph.threshold, random), strict=True)
        texts = {peer: b"".join(x.to_bytes(shamir.SHARE_BYTES, "little") for x in values) for peer, values in rows}
        self.shared = {self.id: _pair(texts.pop(self.id))}
        sealed = self.mailbox.sealed("shares", texts)
        return sealed._replace(body={**sealed.body, "commitment": byte_row(commitment(seed, self.session))})

    def take_boxes(self, message: Message) -> None:
        """Open what neighbours sent; who sent nothing has dropped out, and no mask is shared with it."""
        opened = self.mailbox.open(message, 2 * shamir.SHARE_BYTES, list(self.publics))
        self.shared |= {peer: _pair(text) for peer, text in opened.items()}
        enough(len(self.shared), self.graph.threshold, self.where, "clients sent shares")

    @property
    def _own_publics(self) -> bytes:
        return self.mask_key.public + self.mailbox.key.public

    def signature(self, message: Message) -> Message:
        """Sign who is left, so that all can see that the server told everybody the same."""
        assert self.identity is not None
        body = read(message, "survivors", self.where, self.session, ids=(NUMBERS, (None,)))
        self.signed = self._survivors(body["ids"])
        text = self._consistency_text(self.signed)
        return say("signed", self.session, signature=byte_row(self.identity.sign(text)))

    def revealed(self, message: Message) -> Message:
        """Shares of the seed of who stayed and of the key of who did not: never both of one client."""
        fields: Fields = {"alive": (NUMBERS, (None,)), "dropped": (NUMBERS, (None,))}
        if self.identity is not None:
            fields |= {"signers": (NUMBERS, (None,)), "signatures": (BYTES, (None, SIGNATURE_BYTES))}
        body = read(message, "unmask", self.where, self.session, **fields)
        alive = self._survivors(body["alive"])
        dropped = read_ids(body["dropped"], self.where, among=list(self.shared))
        if set(alive) & set(dropped):
            both = min(set(alive) & set(dropped))
            raise ProtocolError(f"{self.where}: asked for both shares of client {both}. They would unmask its vector.")
        if set(alive) | set(dropped) != set(self.shared):
            raise ProtocolError(f"{self.where}: not everybody who sent shares is listed. Each stayed or dropped out.")
        if self.identity is not None:
            self._check_consistency(alive, body["signers"], body["signatures"])
        seeds = byte_rows([self.shared[id][0] for id in alive], shamir.SHARE_BYTES)
        keys = byte_rows([self.shared[id][1] for id in dropped], shamir.SHARE_BYTES)
        return say("revealed", self.session, seeds=seeds, keys=keys)

    def _consistency_text(self, alive: Sequence[int]) -> bytes:
        return consistency_text(self.session, self.clients, self.publics, self.mailbox.publics, alive)

    def _survivors(self, listed: Tensor) -> list[int]:
        ids = read_ids(listed, self.where, among=list(self.shared), me=self.id)
        enough(len(ids), self.graph.threshold, self.where, "clients are said to be left")
        return ids

    def _check_consistency(self, alive: list[int], listed: Tensor, signatures: Tensor) -> None:
        if alive != self.signed:
            raise ProtocolError(f"{self.where}: the survivors are not those it signed. Do not trust the server.")
        signers = read_ids(listed, self.where, among=alive)
        if len(signatures) != len(signers):
            raise ProtocolError(f"{self.where}: {len(signatures)} signatures of {len(signers)} clients. Was it cut?")
        enough(len(signers), self.graph.threshold, self.where, "clients signed who is left")
        text = self._consistency_text(alive)
        self._verify(signers, signatures, lambda id: text)

    def _verify(self, ids: Sequence[int], signatures: Tensor, text: Callable[[int], bytes]) -> None:
        assert self.identity is not None
        for id, signature in zip(ids, signatures.numpy(), strict=True):
            if not self.identity.signed_by(id, signature.tobytes(), text(id)):
                raise ProtocolError(
                    f"{self.where}: the signature of client {id} is not of what this client was told. The server tells "
                    "clients different things, or somebody changed it on its way: nothing is revealed."
                )


def _pair(text: bytes) -> tuple[bytes, bytes]:
    return text[: shamir.SHARE_BYTES], text[shamir.SHARE_BYTES :]


def _check_enrolled(clients: int, identity: Identity, where: str) -> None:
    """The threshold is a share of the cohort: a server that says a smaller one would choose it."""
    enrolled = len(identity.directory)
    if clients != enrolled:
        raise ProtocolError(
            f"{where}: a round of {clients} clients, and {enrolled} were enrolled. The threshold is one of all of "
            "these: do not trust the server, or enrol those of this round."
        )


def _identity(own: Tree, where: str) -> Identity:
    if "identity" not in own:
        raise ProtocolError(f"{where}: holds no identity to sign with. Give each client what `enrol` returns for it.")
    return Identity.read(own["identity"])
