"""Secure aggregation: protocols whose server learns a sum of vectors, and no vector of its own."""

from __future__ import annotations

import hashlib
import secrets
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias
from typing import Protocol as Interface

from torch import Tensor

from atoll import tree
from atoll.core import Message, Protocol
from atoll.errors import ConfigError

RandomBytes: TypeAlias = Callable[[int], bytes]  # so many of them, and other ones at every call


class Agreeing(Interface):
    """A client's key as far as a seed that two agree on may use it."""

    @property
    def public(self) -> bytes: ...

    def secret_with(self, other: bytes) -> bytes: ...


@dataclass(frozen=True)
class Security:
    """What one protocol promises, in words for the report, and FedEval's level for the record."""

    level: int  # 0: data; 1: every update; 2: only the aggregate; 3: nothing is seen by the server
    server_learns: str
    clients_learn: str
    assumes: str  # who may collude with whom, and whom one trusts


def who_may_collude(colluders: int, clients: int, in_sum: int) -> str:
    """Of so many clients, for sums of at least so many: nothing keeps colluders from subtracting their own vectors.

    >>> who_may_collude(13, 20, 14)[-95:]
    'they learn the sum of the others in it, of whom there may be as few as 1, whose vector that is.'
    """
    if colluders < 1:
        return f"None of {clients} clients may collude with the server."
    left = max(1, in_sum - colluders)
    alone = ", whose vector that is" if left == 1 else ""
    return (
        f"Up to {colluders} of {clients} clients may collude, with the server too: together they learn the sum of the "
        f"others in it, of whom there may be as few as {left}{alone}."
    )


class SecureAggregation(Protocol):
    """A client holds {"vector": (n,) int64}, residues below 2^bits. The server's result is their sum modulo 2^bits:

    {"sum": (n,) int64, "ids": (m,) int64}, where `ids` are those whose vectors are in the sum, in increasing order. Too
    few left: a ProtocolError. Who drops out before its vector arrived is not in the sum; who drops out later is.
    """

    needs: ClassVar[str] = ""  # the package that must be installed, if any: the extra `secure` has it
    seed_bytes: ClassVar[int] = 0  # of the seeds that `mask` takes; 0: there are no masks that a seed gives
    authenticates: ClassVar[bool] = False  # are bytes of another round, client or key refused, and bytes changed?
    vector_kind: ClassVar[str] = ""  # the kind of the message with which a client's vector arrives
    of_any_length: ClassVar[frozenset[str]] = frozenset()  # parts of messages that differ in length by client
    bits: int
    insecure_seed: bool  # tests only: keys and masks are drawn from the run's seed

    @abstractmethod
    def least(self, clients: int) -> int:
        """How many of so many clients must stay to the end."""

    @abstractmethod
    def security(self, clients: int) -> Security:
        """What is promised among so many clients."""

    def answers(self) -> tuple[str, ...]:
        """The kinds of a client's messages, one for each step, where they are the same for all; () if not."""
        return ()

    def modulus(self, clients: int) -> int:
        """Of the arithmetic in which vectors of so many are added: a multiple of 2^bits, or above any sum of them.

        Where it is not 2^bits itself, the server also learns how often the sum wraps around.
        """
        return 1 << self.bits

    def more_than_the_sum(self) -> str:
        """What somebody, server or client, sees beyond the sum modulo 2^bits; "" for nothing.

        Noise that clients add in shares is measured for that sum: with more to be seen it promises nothing.
        """
        return ""

    def for_bounded_sums(self) -> SecureAggregation:
        """The protocol where every sum, read from -2^(bits-1) on, is known to fit: it may do without guard bits."""
        return self

    def shuffles(self) -> bool:
        """Does the server get every vector and not whose it is? Then clients may send reports of local randomisers.

        They hide among as many as `least` says: what that gains is `atoll.privacy.shuffled`.
        """
        return False

    def mask(self, seed: bytes, size: int, clients: int) -> Tensor:
        """(size,) int64 below the modulus, as this seed gives them, for protocols that have `seed_bytes`."""
        raise ConfigError(f"{type(self).__name__}: has no masks from seeds. Ask `seed_bytes` first.")

    def pair_seed(self, key: Agreeing, public: bytes, session: bytes, id: int, peer: int) -> bytes | None:
        """The seed of the mask between two clients, the same from both sides; None where no mask is of two clients.

        From what `key` agrees on with the other's public key, and from no public data alone.
        """
        return None

    def faults(self, inbox: Mapping[int, Message]) -> Mapping[int, str]:
        """Whose answer is not shaped as that of most: a vector that is one short, say, of which there is no sum."""
        shapes = {id: self._shape(message) for id, message in inbox.items()}
        usual, many = Counter(shapes.values()).most_common(1)[0] if shapes else (None, 0)
        if 2 * many <= len(shapes):
            return {}
        why = "is not like that of the others: other parts, or of another length."
        return {id: f"its {inbox[id].kind!r} {why}" for id, shape in shapes.items() if shape != usual}

    def _shape(self, message: Message) -> Hashable:
        parts = []
        for path, x in tree.paths(message.body):
            length = x.shape[1:] if path in self.of_any_length else x.shape
            parts.append((path, x.dtype, tuple(length), None if x.dim() else x.item()))
        return message.kind, tuple(sorted(parts, key=lambda part: part[0]))

    def masked(self, message: Message) -> Tensor | None:
        """What the server sees of a client's vector, where it should be uniform below the modulus; else None."""
        return None

    def cautions(self, clients: int) -> tuple[str, ...]:
        """What whoever runs it among so many clients should be told, if anything."""
        if clients > 2:
            return ()
        return (
            "secure aggregation of two parties: each knows the other's vector from the sum and its own, so that it is "
            "hidden from the server alone (OARF, appendix B.3). Take three or more.",
        )

    def partners(self, clients: int) -> int:
        """How many others each of so many clients shares something with: costs grow with that."""
        return clients - 1

    def random_bytes(self, key: Tensor) -> RandomBytes:
        """Where keys and masks come from: the system, unless `insecure_seed`."""
        return seeded_bytes(key) if self.insecure_seed else secrets.token_bytes


def seeded_bytes(key: Tensor) -> RandomBytes:
    """A stream that repeats itself, for tests.

    >>> import torch
    >>> seeded_bytes(torch.tensor([1, 2]))(4) == seeded_bytes(torch.tensor([1, 2]))(4)
    True
    """
    seed, calls = repr(key.tolist()).encode(), 0

    def draw(n: int) -> bytes:
        nonlocal calls
        calls += 1
        return hashlib.shake_256(seed + calls.to_bytes(8, "little")).digest(n)

    return draw
