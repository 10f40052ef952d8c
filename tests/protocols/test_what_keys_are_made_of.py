"""Keys, seeds and noise are made of what is secret: known answers, and draws that are watched.

Each of these could be made of public data, or of too little, with every sum still right.
"""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, is_dataclass, replace

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from scipy.stats import chi2
from torch import Tensor

from atoll import rng
from atoll.core import Client, Message
from atoll.protocols import CkksAggregation, LightSecAgg, PaillierAggregation, SecAgg, SecureAggregation, run_protocol
from atoll.protocols.homomorphic import HomomorphicAggregation, Keyed
from atoll.protocols.keys import KeyPair
from atoll.protocols.light_secagg_roles import CodedMasks
from atoll.protocols.mailbox import Mailbox
from atoll.protocols.masks import SEED_BYTES
from atoll.protocols.mersenne import Elements, MersenneField
from atoll.protocols.pairwise_client import commitment, pair_seed
from atoll.protocols.secure_aggregation import RandomBytes
from atoll.protocols.shamir import PRIME, split
from atoll.testing.interception import Intercepted
from atoll.tree import Tree
from tests.support.secure import KEY, vectors

SESSION = bytes(range(16))
MINE, THEIRS = KeyPair(bytes(range(1, 33))), KeyPair(bytes(range(33, 65)))


def number(id: int) -> bytes:
    return id.to_bytes(8, "little")


def agreed(mine: KeyPair, theirs: KeyPair) -> bytes:
    return X25519PrivateKey.from_private_bytes(mine.private).exchange(X25519PublicKey.from_public_bytes(theirs.public))


def derived(secret: bytes, info: bytes) -> bytes:
    return HKDF(hashes.SHA256(), 32, SESSION, info).derive(secret)


def test_a_pairs_seed_is_hkdf_of_what_x25519_agrees_on() -> None:
    expected = derived(agreed(MINE, THEIRS), b"atoll mask\0" + number(2) + number(9))
    assert pair_seed(MINE, THEIRS.public, SESSION, 9, 2) == pair_seed(THEIRS, MINE.public, SESSION, 2, 9) == expected


def test_a_commitment_is_hkdf_of_the_seed_and_not_the_seed() -> None:
    assert commitment(MINE.private, SESSION) == derived(MINE.private, b"atoll commitment") != MINE.private


def test_a_box_has_a_key_of_its_direction() -> None:
    """One key for both directions, under the constant nonce, would be a pad that is used twice."""
    boxes = [Mailbox(id, SESSION, key, {2: MINE.public, 9: THEIRS.public}) for id, key in ((2, MINE), (9, THEIRS))]
    for mailbox, to in zip(boxes, (9, 2), strict=True):
        who = number(mailbox.id) + number(to)
        key = derived(agreed(MINE, THEIRS), b"atoll shares\0" + who)
        assert ChaCha20Poly1305(key).decrypt(bytes(12), mailbox.seal(to, b"a share"), SESSION + who) == b"a share"
    there, back = (np.frombuffer(m.seal(to, bytes(64))[:64], np.uint8) for m, to in zip(boxes, (9, 2), strict=True))
    assert (there == back).sum() < 8


@dataclass
class Watched:
    """Draws of the system, by who drew them."""

    drawn: dict[str, list[bytes]] = field(default_factory=dict)

    def by(self, key: Tensor) -> RandomBytes:
        mine = self.drawn.setdefault(str(key.tolist()), [])

        def draw(n: int) -> bytes:
            mine.append(secrets.token_bytes(n))
            return mine[-1]

        return draw

    def of(self, id: int) -> list[bytes]:
        return self.drawn[str(rng.fold_host(KEY, id).tolist())]


def watched(protocol: type[SecureAggregation], monkeypatch: pytest.MonkeyPatch) -> Watched:
    draws = Watched()
    monkeypatch.setattr(protocol, "random_bytes", lambda self, key: draws.by(key))
    return draws


def test_a_private_masks_seed_is_what_its_client_drew(monkeypatch: pytest.MonkeyPatch) -> None:
    draws, protocol = watched(SecAgg, monkeypatch), SecAgg()
    own = vectors(protocol, 5)
    _, log = run_protocol(protocol, own, KEY)
    for id in own:
        body = log.up[1][id].body
        session, committed = (body[name].numpy().tobytes() for name in ("session", "commitment"))
        seeds = [x for x in draws.of(id) if len(x) == SEED_BYTES]
        assert committed in [commitment(seed, session) for seed in seeds[2:]]  # the first two are its keys


def test_masks_and_their_noise_are_seeded_by_what_their_client_drew(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[bytes] = []

    class Seen(MersenneField):
        def mask(self, seed: bytes, size: int) -> Elements:
            seeds.append(seed)
            return super().mask(seed, size)

    def coding(self: LightSecAgg, clients: int) -> CodedMasks:
        made = whole(self, clients)
        return replace(made, field=Seen(made.field.exponent))

    whole = LightSecAgg.coding
    monkeypatch.setattr(LightSecAgg, "coding", coding)
    draws, protocol = watched(LightSecAgg, monkeypatch), LightSecAgg()
    own = vectors(protocol, 5)
    run_protocol(protocol, own, KEY)
    assert len(set(seeds)) == len(seeds) == 2 * len(own)
    for id in own:
        assert len(set(seeds) & set(draws.of(id)[1:])) == 2


@pytest.mark.parametrize("secret", [7, PRIME - 8], ids=["small", "large"])
def test_shares_are_uniform_in_their_high_bits(secret: int) -> None:
    """Coefficients of 64 bits would leave a secret's upper 176 bits in every share as they are."""
    rows = [split([secret], range(1, 7), 5, secrets.token_bytes) for _ in range(300)]
    places = np.bincount([16 * share // PRIME for row in rows for [share] in row], minlength=16)
    expected = places.sum() / 16
    assert chi2.sf(((places - expected) ** 2 / expected).sum(), 15) > 1e-9
    assert len({share >> 80 for row in rows for [share] in row}) == 1800


def held(value: object) -> Iterator[bytes]:
    """All bytes within a value."""
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from held(part)
    elif isinstance(value, dict):
        yield from held(list(value.values()))
    elif is_dataclass(value):
        yield from held(vars(value))
    elif isinstance(value, Tensor):
        yield value.numpy().tobytes()


def test_a_dealer_that_shared_its_key_holds_it_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could decrypt a single ciphertext for the server, from then on."""
    privates: list[bytes] = []
    clients: dict[int, Client] = {}
    after: dict[str, bool] = {}
    draw, begin = PaillierAggregation.draw_keys, PaillierAggregation.client

    def drawn(self: PaillierAggregation, clients: int, random: RandomBytes) -> tuple[Tree, bytes]:
        public, private = draw(self, clients, random)
        privates.append(private)
        return public, private

    def begun(self: PaillierAggregation, id: int, own: Tree, key: Tensor) -> Client:
        clients[id] = begin(self, id, own, key)
        return clients[id]

    def look(step: int, id: int, message: Message) -> Message:
        if id == 2 and message.kind != "box_key":
            frame = clients[id].gi_frame  # type: ignore[attr-defined]
            after[message.kind] = any(privates[0] in x for v in frame.f_locals.values() for x in held(v))
        return message

    monkeypatch.setattr(PaillierAggregation, "draw_keys", drawn)
    monkeypatch.setattr(PaillierAggregation, "client", begun)
    protocol = PaillierAggregation(key_bits=512, key_holders="shared", insecure_seed=True)
    run_protocol(Intercepted(protocol, up=look), vectors(protocol, 4), KEY)
    assert after == {"dealt": True, "ciphertexts": True, "shares": False, "partial": False}


def test_the_private_key_of_homomorphic_sums_is_not_printed() -> None:
    assert "SECRET" not in repr(Keyed({}, b"SECRET", [1], b""))


@pytest.mark.parametrize("make", [PaillierAggregation, CkksAggregation])
def test_box_keys_of_two_rounds_differ(make: Callable[[], HomomorphicAggregation]) -> None:
    keys = []
    for _ in range(2):
        client = make().client(2, {"vector": torch.arange(3)}, KEY)
        next(client)
        keys.append(client.send(Message("begin", {"clients": torch.tensor(3)})))
    assert keys[0] is not None
    assert keys[1] is not None
    assert not torch.equal(keys[0].body["key"], keys[1].body["key"])
