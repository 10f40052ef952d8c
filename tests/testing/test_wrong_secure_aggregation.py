"""The kit passes what is right, and refuses what others ship and what somebody might break."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import xor

import numpy as np
import pytest
from torch import Tensor

from atoll.core import Message, Server
from atoll.errors import ConformanceError, ProtocolError
from atoll.protocols import (
    AdditiveSharing,
    LightSecAgg,
    SecAgg,
    SecAggPlus,
    SecureAggregation,
    masks,
    message_fields,
    run_protocol,
    seeded_bytes,
)
from atoll.protocols import mailbox as mailboxes
from atoll.protocols import pairwise_client as client_side
from atoll.protocols import pairwise_server as server_side
from atoll.protocols.graphs import Graph
from atoll.protocols.mersenne import Elements, MersenneField
from atoll.protocols.secure_aggregation import RandomBytes
from atoll.testing import check_protocol
from atoll.testing.mask_quality import keys_are_fresh, masks_are_uniform
from atoll.testing.secure_aggregation import keeps_its_promise_to_dropouts, sum_is_plain, vector
from atoll.testing.tampering import refuses_changed_bytes, refuses_replays, reveals_nothing_early
from atoll.tree import Tree
from tests.support.marks import slow, slow_but
from tests.support.secure import KEY, PROTOCOLS, vectors

GOOD = SecAgg(insecure_seed=True)


def held(protocol: SecureAggregation) -> dict[int, Tree]:
    """As the kit gives it to clients."""
    return {3 * i + 1: vector(protocol, i) for i in range(5)}


@pytest.mark.parametrize("name", slow_but(PROTOCOLS, "additive"))
def test_the_kit_passes_what_is_right(name: str) -> None:
    pairs = ["seeds of pairs come from their secret, and keep at least 128 bits"] if name.startswith("secagg") else []
    assert check_protocol(PROTOCOLS[name]) == [
        "says what it promises",
        "pure, and keyed",
        "messages can travel",
        "says so where too many drop out",
        "range x cohort fits the modulus",
        "no message holds the vector of a client",
        "mask seeds keep at least 128 bits",
        *pairs,
        "masks are uniform over the whole range",
        "the sum equals the plain sum",
        "the sum is that of who is promised to be in it",
        "no key is used in two rounds",
        "refuses malformed messages",
        "refuses changed bytes",
        "refuses messages of other rounds and steps",
        "reveals nothing early",
    ]


def flower_words(seed: bytes, size: int, top: int) -> masks.Words:
    """As flwr 1.42.0 draws a mask: MT19937, seeded with the secret folded to 32 bits; randint leaves out its end."""
    folded = reduce(xor, (int.from_bytes(seed[i : i + 4], "little") for i in range(0, len(seed), 4)))
    return np.random.RandomState(folded).randint(0, top, size, dtype=np.int64)


@dataclass(frozen=True)
class FlowerSecAggPlus(SecAggPlus):
    """Flower's masks: 32 bits of seed, and `randint(0, num_range - 1)`."""

    def add_mask(self, total: masks.Words, seed: bytes) -> None:
        total += flower_words(seed, len(total), (1 << self.bits) - 1).astype(total.dtype)

    def subtract_mask(self, total: masks.Words, seed: bytes) -> None:
        total -= flower_words(seed, len(total), (1 << self.bits) - 1).astype(total.dtype)


@dataclass(frozen=True)
class MissingTopValue(SecAggPlus):
    """Flower's second mistake alone: all bits of the seed, but never the greatest value."""

    def add_mask(self, total: masks.Words, seed: bytes) -> None:
        total += self._words(seed, len(total)).astype(total.dtype)

    def subtract_mask(self, total: masks.Words, seed: bytes) -> None:
        total -= self._words(seed, len(total)).astype(total.dtype)

    def _words(self, seed: bytes, size: int) -> masks.Words:
        wide = np.random.Generator(np.random.PCG64(int.from_bytes(seed, "little")))
        return wide.integers(0, (1 << self.bits) - 1, size)


def test_flowers_seed_of_32_bits_is_refused() -> None:
    with pytest.raises(ConformanceError, match=r"mask seeds keep at least 128 bits: found one mask of two seeds"):
        check_protocol(FlowerSecAggPlus(insecure_seed=True))


@pytest.mark.slow
def test_flowers_missing_top_value_is_refused() -> None:
    with pytest.raises(ConformanceError, match=r"masks of 4 bits are uniform: .* randint\(0, top - 1\)"):
        check_protocol(MissingTopValue(insecure_seed=True))


@dataclass(frozen=True)
class SmallPrime(MersenneField):
    """Any prime, slowly; FedML's example has 1997."""

    @cached_property
    def prime(self) -> int:
        return 1997

    def reduce(self, x: Elements) -> Elements:
        return x % np.uint64(self.prime)

    def multiply(self, a: Elements, b: Elements) -> Elements:
        return a * b % np.uint64(self.prime)

    def matmul(self, a: Elements, b: Elements) -> Elements:
        return a @ b % np.uint64(self.prime)

    def mask(self, seed: bytes, size: int) -> Elements:
        draws = np.random.RandomState(np.frombuffer(seed, np.uint32)).randint(0, self.prime, size, dtype=np.int64)
        return draws.astype(np.uint64)


@dataclass(frozen=True)
class FedMLLightSecAgg(LightSecAgg):
    """FedML's example: prime 1997, ten bits of fixed point, and no word where the sum leaves the field."""

    def field(self, clients: int) -> MersenneField:
        return SmallPrime(11)


def test_fedmls_prime_1997_is_refused() -> None:
    with pytest.raises(
        ConformanceError, match=r"range x cohort fits the modulus .* found modulus 1997, expected above"
    ):
        check_protocol(FedMLLightSecAgg(bits=10, insecure_seed=True))


def test_fedmls_overflow_would_be_seen_in_the_sum_too() -> None:
    """Were a larger modulus declared than is computed with."""

    class Declares(FedMLLightSecAgg):
        def modulus(self, clients: int) -> int:
            return 1997 << self.bits

        def masked(self, message: Message) -> Tensor | None:
            return None

    protocol = Declares(bits=10, insecure_seed=True)
    with pytest.raises(ConformanceError, match=r"the sum of what clients hold equals the plain sum: found .* differ"):
        sum_is_plain(protocol, held(protocol))


def test_the_small_prime_itself_is_not_what_is_wrong() -> None:
    """With 8 bits, 5 clients stay below 1997, and the same code gives the plain sum."""
    protocol = FedMLLightSecAgg(bits=8, insecure_seed=True)
    assert sum_is_plain(protocol, held(protocol)) == "the sum equals the plain sum"


def test_a_mask_that_is_not_removed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_side._Desk, "unmask", lambda desk, total, questions, answers: None)
    with pytest.raises(ConformanceError, match=r"equals the plain sum: .* a mask that is left"):
        check_protocol(GOOD)


def test_a_pairwise_mask_that_is_left_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of clients who dropped out: nothing is wrong while all stay."""
    whole = server_side._Desk._collected
    monkeypatch.setattr(
        server_side._Desk,
        "unmask",
        lambda desk, total, questions, answers: [
            desk.settings.subtract_mask(total, desk._seed(id, shares))
            for id, shares in whole(desk, questions, answers, "alive", "seeds").items()
        ],
    )
    with pytest.raises(ConformanceError, match=r"1 of 5 clients lost at step 3: found .* differ"):
        keeps_its_promise_to_dropouts(GOOD, held(GOOD))


def in_clear(mailbox: mailboxes.Mailbox, peer: int, text: bytes) -> bytes:
    return text + bytes(16)


def read_clear(mailbox: mailboxes.Mailbox, peer: int, box: bytes) -> bytes:
    return box[:-16]


@pytest.mark.parametrize(
    "protocol", [GOOD, slow(LightSecAgg(insecure_seed=True)), slow(AdditiveSharing(insecure_seed=True))]
)
def test_shares_in_clear_are_refused(protocol: SecureAggregation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailboxes.Mailbox, "seal", in_clear)
    monkeypatch.setattr(mailboxes.Mailbox, "unseal", read_clear)
    with pytest.raises(ConformanceError, match=r"changed on its way down, is refused: found a result"):
        check_protocol(protocol)


def test_shares_in_clear_with_a_tag_can_still_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Authenticated and not encrypted: no change goes unnoticed, but the server reads the shares before their time."""
    whole_seal, whole_unseal = mailboxes.seal, mailboxes.unseal

    def sealed(key: bytes, text: bytes, *names: object) -> bytes:
        return text + whole_seal(key, text, *names)[-16:]  # type: ignore[arg-type]

    def unsealed(key: bytes, box: bytes, *names: object) -> bytes:
        if whole_seal(key, box[:-16], *names)[-16:] != box[-16:]:  # type: ignore[arg-type]
            whole_unseal(key, box, *names)  # type: ignore[arg-type]
        return box[:-16]

    monkeypatch.setattr(mailboxes, "seal", sealed)
    monkeypatch.setattr(mailboxes, "unseal", unsealed)
    with pytest.raises(ConformanceError, match=r"nothing can be read before it is revealed: .* shares in clear"):
        reveals_nothing_early(GOOD, held(GOOD))


class NoThreshold(SecAgg):
    """Promises a threshold of two thirds, and works with two."""

    def graph(self, clients: int) -> Graph:
        return replace(super().graph(clients), threshold=2, least=2)

    def least(self, clients: int) -> int:
        return super().graph(clients).least


def test_a_threshold_that_is_not_enforced_is_refused() -> None:
    with pytest.raises(ConformanceError, match=r"below the threshold .* a round ends: found a result"):
        check_protocol(NoThreshold(insecure_seed=True))


@pytest.mark.parametrize("side", [server_side, client_side])
def test_either_side_alone_holds_the_threshold(side: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the check of one side gone, the other still ends the round: neither is there for show."""
    monkeypatch.setattr(side, "enough", lambda *given: None)
    if side is server_side:
        whole = message_fields.read_all
        monkeypatch.setattr(side, "read_all", lambda i, k, s, a, least, **fields: whole(i, k, s, a, 0, **fields))
    for step in range(3):
        with pytest.raises(ProtocolError, match="and the threshold is 5"):
            run_protocol(GOOD, vectors(GOOD, 6), KEY, lambda at, id, step=step: at == step and id in (2, 9))


class OneKey(SecAgg):
    """Draws its keys from the experiment's seed, which is the same in every round."""

    def random_bytes(self, key: Tensor) -> RandomBytes:
        return seeded_bytes(key)


def test_a_key_that_is_used_in_two_rounds_is_refused() -> None:
    with pytest.raises(ConformanceError, match=r"no key is used in two rounds \(from the system\)"):
        keys_are_fresh(OneKey(insecure_seed=True), held(GOOD))


class HalfOfTheWord(SecAgg):
    """Adds masks only to the lower half of the words."""

    def add_mask(self, total: masks.Words, seed: bytes) -> None:
        total += masks.mask(seed, len(total), self.bits) & total.dtype.type((1 << self.bits // 2) - 1)

    def subtract_mask(self, total: masks.Words, seed: bytes) -> None:
        total -= masks.mask(seed, len(total), self.bits) & total.dtype.type((1 << self.bits // 2) - 1)


def test_a_mask_over_half_of_the_range_is_refused() -> None:
    with pytest.raises(ConformanceError, match="masks of 32 bits are uniform: found chi-square of the high part"):
        masks_are_uniform(HalfOfTheWord(insecure_seed=True), held(GOOD))


def test_a_session_that_nobody_reads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.protocols.message_fields._is_of", lambda session, body: True)
    with pytest.raises(ConformanceError, match="a byte of 'session' in 'peers', changed on its way down, is refused"):
        refuses_changed_bytes(GOOD, held(GOOD))
    with pytest.raises(ConformanceError, match=r"of another round in place of .* is refused: found"):
        refuses_replays(GOOD, held(GOOD))


def test_a_mask_key_that_boxes_are_not_bound_to_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask key changed on its way to one client gave a wrong sum in silence."""
    monkeypatch.setattr(mailboxes.Mailbox, "_agreed", lambda mailbox, sender, receiver: mailbox.session)
    with pytest.raises(
        ConformanceError, match="'public' in 'peers', changed on its way down, is refused: found a result"
    ):
        refuses_changed_bytes(GOOD, held(GOOD))


def test_what_is_checked_draws_from_a_seed() -> None:
    with pytest.raises(ConformanceError, match="is checked with insecure_seed = True"):
        check_protocol(SecAgg())


class LosesItsWord(SecAgg):
    """Breaks with another error where a message is missing."""

    def server(self, ids: Sequence[int], key: Tensor) -> Server:
        server = super().server(ids, key)
        inbox = yield next(server)
        while True:
            if len(inbox) < len(ids):
                raise KeyError("who?")
            try:
                inbox = yield server.send(inbox)
            except StopIteration as end:
                result: dict[str, Tensor] = end.value
                return result


def test_an_error_of_another_kind_is_refused() -> None:
    with pytest.raises(ConformanceError, match="KeyError"):
        check_protocol(LosesItsWord(insecure_seed=True))
