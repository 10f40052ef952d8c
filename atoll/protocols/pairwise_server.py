"""The server's side of pairwise masks: passes keys and boxes on, adds up, and takes off the masks that are left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hmac import compare_digest

import torch
from torch import Tensor

from atoll.core import Message, Server
from atoll.errors import ProtocolError
from atoll.protocols import masks, shamir
from atoll.protocols.graphs import Graph
from atoll.protocols.keys import KEY_BYTES, SESSION_BYTES, SIGNATURE_BYTES, KeyPair
from atoll.protocols.mailbox import BOXES, relay
from atoll.protocols.message_fields import BYTES, NUMBERS, Fields, begin, enough, id_row, one_length, read_all, say
from atoll.protocols.pairwise_client import Settings, commitment
from atoll.protocols.secure_aggregation import RandomBytes
from atoll.tree import Tree


def pairwise_server(settings: Settings, ids: Sequence[int], random: RandomBytes) -> Server:
    """The server, from a session's number to the sum of those whose vectors arrived."""
    session, graph, signs = random(SESSION_BYTES), settings.graph(len(ids)), settings.checks_consistency()
    signature: Fields = {"signature": (BYTES, (SIGNATURE_BYTES,))}
    least = graph.least

    public: Fields = {"public": (BYTES, (2, KEY_BYTES)), **(signature if signs else {})}
    keys = read_all((yield begin(session, ids)), "keys", session, ids, least, **public)
    desk = _Desk(session, graph, settings, graph.neighbours(list(keys), random))
    desk.publics = {id: body["public"][0].numpy().tobytes() for id, body in keys.items()}

    fields: Fields = {**BOXES, "commitment": (BYTES, (KEY_BYTES,))}
    shares = read_all((yield desk.introductions(keys)), "shares", session, list(keys), least, **fields)
    desk.commitments = {id: body["commitment"].numpy().tobytes() for id, body in shares.items()}
    boxes = relay(session, shares, desk.neighbours)
    vectors = read_all((yield boxes), "masked", session, list(shares), least, vector=(NUMBERS, (None,)))
    total = desk.add_up(vectors)

    alive, asked, proofs = list(vectors), list(vectors), dict[str, Tensor]()
    if signs:
        survivors = dict.fromkeys(alive, say("survivors", session, ids=id_row(alive)))
        signed = read_all((yield survivors), "signed", session, alive, least, **signature)
        asked, signatures = list(signed), torch.stack([body["signature"] for body in signed.values()])
        proofs = {"signers": id_row(asked), "signatures": signatures}
    questions = desk.questions(alive, list(shares), asked, proofs)
    revealed: Fields = dict.fromkeys(("seeds", "keys"), (BYTES, (None, shamir.SHARE_BYTES)))
    answers = read_all((yield questions), "revealed", session, asked, least, **revealed)
    desk.unmask(total, questions, answers)
    return {"sum": masks.residues(total, settings.bits), "ids": id_row(alive)}


@dataclass
class _Desk:
    """What the server knows, in the order in which it learns it."""

    session: bytes
    graph: Graph
    settings: Settings
    neighbours: dict[int, list[int]]
    publics: dict[int, bytes] = field(default_factory=dict)  # of the mask keys
    commitments: dict[int, bytes] = field(default_factory=dict)
    points: dict[tuple[int, ...], list[int]] = field(default_factory=dict)  # Lagrange coefficients of holders

    def introductions(self, keys: Mapping[int, Tree]) -> dict[int, Message]:
        """Each client's neighbours and itself, with their keys."""
        order = {id: at for at, id in enumerate(keys)}
        columns = {"public": torch.stack([body["public"] for body in keys.values()])}
        if "signature" in next(iter(keys.values())):
            columns["signatures"] = torch.stack([body["signature"] for body in keys.values()])
        messages = {}
        for id in keys:
            listed = sorted([*self.neighbours[id], id])
            rows = torch.tensor([order[other] for other in listed])
            told = {name: column[rows] for name, column in columns.items()}
            messages[id] = say("peers", self.session, ids=id_row(listed), **told)
        return messages

    def add_up(self, vectors: Mapping[int, Tree]) -> masks.Words:
        total = masks.zeros(one_length(vectors), self.settings.bits)
        for id, body in vectors.items():
            total += masks.words(body["vector"], self.settings.bits, f"server, from client {id}")
        return total

    def questions(
        self, alive: Sequence[int], shared: Sequence[int], asked: Sequence[int], proofs: Mapping[str, Tensor]
    ) -> dict[int, Message]:
        """Each client's neighbours: those who stayed, itself among them, and those who sent shares and dropped out."""
        stayed, sent = set(alive), set(shared)
        messages = {}
        for id in asked:
            known = [other for other in self.neighbours[id] if other in sent]
            near = sorted([id, *(other for other in known if other in stayed)])
            gone = [other for other in known if other not in stayed]
            messages[id] = say("unmask", self.session, alive=id_row(near), dropped=id_row(gone), **proofs)
        return messages

    def unmask(self, total: masks.Words, questions: Mapping[int, Message], answers: Mapping[int, Tree]) -> None:
        """Take off, in place, the private masks of who stayed and the pairwise ones towards who did not."""
        seeds = self._collected(questions, answers, "alive", "seeds")
        keys = self._collected(questions, answers, "dropped", "keys")
        stayed = {id for message in questions.values() for id in message.body["alive"].tolist()}
        lost = {id for message in questions.values() for id in message.body["dropped"].tolist()}
        for id in sorted(stayed):
            self.settings.subtract_mask(total, self._seed(id, seeds.get(id, [])))
        for id in sorted(lost):
            key = self._key(id, keys.get(id, []))
            for peer in self.neighbours[id]:
                if peer in stayed:
                    remove = self.settings.subtract_mask if peer < id else self.settings.add_mask
                    remove(total, self.settings.pair_seed(key, self.publics[peer], self.session, id, peer))

    def _collected(
        self, questions: Mapping[int, Message], answers: Mapping[int, Tree], listed: str, name: str
    ) -> dict[int, list[tuple[int, bytes]]]:
        """Of each client, the first `threshold` shares that came, with their holders."""
        collected: dict[int, list[tuple[int, bytes]]] = {}
        for holder, body in answers.items():
            ids, rows = questions[holder].body[listed].tolist(), body[name].numpy()
            if len(rows) != len(ids):
                raise ProtocolError(f"server, from client {holder}: {len(rows)} {name} of {len(ids)}. Was it cut?")
            for id, row in zip(ids, rows, strict=True):
                shares = collected.setdefault(id, [])
                if len(shares) < self.graph.threshold:
                    shares.append((holder, row.tobytes()))
        return collected

    def _seed(self, id: int, shares: Sequence[tuple[int, bytes]]) -> bytes:
        seed = self._secret(id, shares)
        if not compare_digest(commitment(seed, self.session), self.commitments[id]):
            raise ProtocolError(f"server: shares of client {id}'s seed give another one than it committed to. {_WRONG}")
        return seed

    def _key(self, id: int, shares: Sequence[tuple[int, bytes]]) -> KeyPair:
        key = KeyPair(self._secret(id, shares))
        if not compare_digest(key.public, self.publics[id]):
            raise ProtocolError(f"server: shares of client {id}'s key give another one than it advertised. {_WRONG}")
        return key

    def _secret(self, id: int, shares: Sequence[tuple[int, bytes]]) -> bytes:
        enough(len(shares), self.graph.threshold, "server", f"shares of client {id} came")
        points = tuple(holder + 1 for holder, _ in shares)
        if points not in self.points:
            self.points[points] = shamir.coefficients(points)
        secret = shamir.combine(self.points[points], [int.from_bytes(share, "little") for _, share in shares])
        if secret >> (8 * KEY_BYTES):
            raise ProtocolError(f"server: shares of client {id} give no secret of {KEY_BYTES} bytes. {_WRONG}")
        return secret.to_bytes(KEY_BYTES, "little")


_WRONG = "A share is wrong, and the sum with it: begin a new round."
