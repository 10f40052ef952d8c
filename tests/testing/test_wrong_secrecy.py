"""The kit refuses protocols that send what they promise to hide, and does not say that it checked what it did not."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from atoll.core import Client, Message
from atoll.errors import ConformanceError
from atoll.protocols import (
    LightSecAgg,
    PaillierAggregation,
    SecAgg,
    SecureAggregation,
    SecureShuffle,
    Security,
    masks,
    rosters,
    run_protocol,
)
from atoll.protocols.light_secagg_roles import CodedMasks
from atoll.protocols.mersenne import Elements, MersenneField
from atoll.protocols.pairwise_client import pair_seed
from atoll.protocols.sealed_box import BoxKey
from atoll.protocols.secure_aggregation import Agreeing
from atoll.protocols.slots import pack_residues
from atoll.testing import check_protocol
from atoll.testing.mask_quality import keys_are_fresh, pairs_agree_in_secret
from atoll.testing.secrecy import hides_vectors
from atoll.testing.secure_aggregation import vector
from atoll.tree import Tree
from tests.support.secure import KEY, plain_sum
from tests.support.summed_in_clear import SummedInClear

Encoding = Callable[[Tensor], Tensor]


def held(protocol: SecureAggregation) -> dict[int, Tree]:
    """As the kit gives it to clients."""
    return {3 * i + 1: vector(protocol, i) for i in range(5)}


@dataclass(frozen=True)
class SaysLevelTwo(SummedInClear):
    """Sends vectors as they are, and promises that the server learns the sum alone."""

    encoding: Encoding | None = None

    def security(self, clients: int) -> Security:
        return Security(2, "the sum", "nothing", "nothing at all")

    def client(self, id: int, own: Tree, key: Tensor) -> Client:
        yield None
        yield Message("here", {} if self.encoding is None else {"x": self.encoding(own["vector"])})
        yield Message("vector", {"vector": own["vector"] if self.encoding is None else torch.zeros(1)})
        yield Message("confirm", {})


def test_a_vector_in_clear_is_refused_at_level_two() -> None:
    with pytest.raises(ConformanceError, match=r"no message holds the vector of a client \('vector'\): found"):
        check_protocol(SaysLevelTwo(insecure_seed=True))


ENCODINGS: dict[str, Encoding] = {
    "packed": lambda x: torch.from_numpy(pack_residues(x.numpy(), 32)),
    "another order of bytes": lambda x: torch.from_numpy(x.numpy().byteswap()),
    "32 bits": lambda x: torch.from_numpy(x.numpy().astype(np.int32)),
    "float64": lambda x: x.double(),
    "negated": lambda x: -x % (1 << 32),
    "behind others": lambda x: torch.cat([torch.zeros(3, dtype=torch.int64), x]),
    "reversed": lambda x: x.flip(0),
    "one half of it": lambda x: x[len(x) // 2 :],
    "a constant on top": lambda x: (x + 12345) % (1 << 32),
    "hashed": lambda x: torch.tensor([int(i) * 0x9E3779B97F4A7C15 % (1 << 61) for i in x]),
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_vector_in_another_encoding_is_refused(name: str) -> None:
    protocol = SaysLevelTwo(insecure_seed=True, encoding=ENCODINGS[name])
    with pytest.raises(ConformanceError, match=r"no message holds|what follows from a vector follows from keys"):
        hides_vectors(protocol, held(protocol))


def test_what_is_not_checked_is_not_named() -> None:
    """A shuffle hides no vector, has no masks, and does not say that it authenticates."""
    named = check_protocol(SecureShuffle(insecure_seed=True))
    assert "no key is used in two rounds" in named
    for absent in (
        "no message holds the vector of a client",
        "mask seeds keep at least 128 bits",
        "masks are uniform over the whole range",
        "seeds of pairs come from their secret, and keep at least 128 bits",
        "refuses changed bytes",
        "refuses messages of other rounds and steps",
        "the sum is that of who is promised to be in it",
    ):
        assert absent not in named


class Folded(SecAgg):
    """32 bits of a pair's seed, hashed to 32 bytes before they are a mask's seed: all masks look as they should."""

    def pair_seed(self, key: Agreeing, public: bytes, session: bytes, id: int, peer: int) -> bytes:
        return hashlib.sha256(super().pair_seed(key, public, session, id, peer)[:4]).digest()


class PublicPairs(SecAgg):
    """A pair's seed from what everybody sees."""

    def pair_seed(self, key: Agreeing, public: bytes, session: bytes, id: int, peer: int) -> bytes:
        both = b"".join(sorted([key.public, public]))
        return hashlib.sha256(session + both + bytes([min(id, peer), max(id, peer)])).digest()


class ShortPairs(SecAgg):
    """16 bytes where 32 are declared."""

    def pair_seed(self, key: Agreeing, public: bytes, session: bytes, id: int, peer: int) -> bytes:
        return pair_seed(key, public, session, id, peer)[:16]


@pytest.mark.parametrize(
    ("protocol", "found"),
    [(Folded, "one seed of two secrets"), (PublicPairs, "one seed of two secrets"), (ShortPairs, "expected 32 bytes")],
)
def test_a_pairs_seed_of_few_bits_or_of_public_data_is_refused(protocol: type[SecAgg], found: str) -> None:
    with pytest.raises(ConformanceError, match=f"seeds of pairs come from their secret, and keep .*{found}"):
        pairs_agree_in_secret(protocol(insecure_seed=True), held(SecAgg()))


def test_masks_of_pairs_are_made_from_what_is_checked() -> None:
    """Both sides of SecAgg ask `pair_seed`, so that a sum is right with any."""
    for protocol in (Folded, PublicPairs):
        variant = protocol(insecure_seed=True)
        own = held(variant)
        assert hides_vectors(variant, own) is not None
        result, _ = run_protocol(variant, own, KEY, lambda step, id: (step, id) == (2, 4))
        assert result["sum"].tolist() == plain_sum(variant, own, [1, 7, 10, 13])


def test_a_mask_that_follows_from_the_session_is_refused() -> None:
    """All clients add one mask that whoever reads the first message can take off."""

    class Public(LightSecAgg):
        def coding(self, clients: int) -> CodedMasks:
            inner = super().coding(clients)
            return replace(inner, field=Constant(inner.field.exponent))

    with pytest.raises(ConformanceError, match=r"what follows from a vector follows from keys \('masked/vector'"):
        hides_vectors(Public(insecure_seed=True), held(LightSecAgg()))


class Constant(MersenneField):
    def mask(self, seed: bytes, size: int) -> Elements:
        return masks.mask(bytes(32), size, self.exponent - 1).astype(np.uint64) & np.uint64(self.prime >> 1)


def test_box_keys_of_two_rounds_that_are_one_are_refused_without_masks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Homomorphic sums have no mask seeds; their box keys are for one round all the same."""
    cache: dict[int, BoxKey] = {}
    member = rosters.Member
    monkeypatch.setattr(
        "atoll.protocols.homomorphic.Member",
        lambda id, box, random, least: member(id, cache.setdefault(id, box), random, least),
    )
    protocol = PaillierAggregation(key_bits=512, insecure_seed=True)
    with pytest.raises(ConformanceError, match="no key is used in two rounds"):
        keys_are_fresh(protocol, held(protocol))
