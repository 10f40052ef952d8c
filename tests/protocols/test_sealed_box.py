"""Boxes: the owner opens them, nobody else does, and nobody changes them."""

import secrets

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from atoll.errors import ProtocolError
from atoll.protocols.sealed_box import OVERHEAD, BoxKey, seal

OWNER = BoxKey.draw(secrets.token_bytes)
BOX = seal(OWNER.public, b"a share of the key", b"round 3", secrets.token_bytes)


def test_the_owner_opens_a_box() -> None:
    assert OWNER.open(BOX, b"round 3") == b"a share of the key"
    assert len(BOX) == len(b"a share of the key") + OVERHEAD


def test_it_is_x25519_hkdf_and_chacha20_poly1305() -> None:
    agreed = X25519PrivateKey.from_private_bytes(OWNER.private).exchange(X25519PublicKey.from_public_bytes(BOX[:32]))
    info = b"atoll sealed box 1" + BOX[:32] + OWNER.public + b"round 3"
    key = HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(agreed)
    assert ChaCha20Poly1305(key).decrypt(bytes(12), BOX[32:], b"round 3") == b"a share of the key"


@pytest.mark.parametrize("at", [0, 31, 32, 40, len(BOX) - 1])
def test_a_changed_box_does_not_open(at: int) -> None:
    changed = bytearray(BOX)
    changed[at] ^= 1
    with pytest.raises(ProtocolError, match="does not open"):
        OWNER.open(bytes(changed), b"round 3")


def test_a_box_for_another_key_or_step_does_not_open() -> None:
    with pytest.raises(ProtocolError, match="another key or step"):
        BoxKey.draw(secrets.token_bytes).open(BOX, b"round 3")
    with pytest.raises(ProtocolError, match="another key or step"):
        OWNER.open(BOX, b"round 4")


@pytest.mark.parametrize("size", [0, 31, 47])
def test_a_box_that_was_cut_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError, match="cut"):
        OWNER.open(BOX[:size], b"round 3")


@pytest.mark.parametrize("public", [b"", bytes(31), bytes(32)], ids=["none", "short", "a point of low order"])
def test_what_is_no_key_is_refused(public: bytes) -> None:
    with pytest.raises(ProtocolError, match="no point that a secret can be agreed with"):
        seal(public, b"", b"", secrets.token_bytes)


def test_two_boxes_of_one_message_have_nothing_in_common() -> None:
    other = seal(OWNER.public, b"a share of the key", b"round 3", secrets.token_bytes)
    assert sum(a == b for a, b in zip(BOX, other, strict=True)) < 8


def test_the_private_key_is_not_printed() -> None:
    assert OWNER.private.hex() not in repr(OWNER)
    assert str(OWNER.private) not in repr(OWNER)
