"""Against the vectors of the RFCs, and against whoever changes a key, a box, a session or a name."""

import secrets

import pytest
import torch
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from atoll import rng
from atoll.errors import ConfigError, ProtocolError
from atoll.protocols import PROTOCOLS, extra
from atoll.protocols.keys import Identity, KeyPair, byte_rows, derive, enrol_identities, hkdf, seal, unseal

SESSION = b"one session only"
KEY = bytes(range(32))


def test_two_agree_on_the_secret_of_rfc_7748() -> None:
    alice = KeyPair(bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"))
    bob = KeyPair(bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"))
    assert alice.public.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert bob.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    secret = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert alice.secret_with(bob.public).hex() == bob.secret_with(alice.public).hex() == secret


@pytest.mark.parametrize(
    ("salt", "info", "okm"),
    [
        (
            bytes(range(13)),
            bytes(range(0xF0, 0xFA)),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
        ),
        (b"", b"", "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"),
    ],
)
def test_hkdf_gives_the_vectors_of_rfc_5869(salt: bytes, info: bytes, okm: str) -> None:
    assert hkdf(b"\x0b" * 22, salt, info, 42).hex() == okm


@given(st.binary(min_size=1, max_size=80), st.binary(max_size=80), st.binary(max_size=40), st.integers(1, 200))
def test_hkdf_is_the_librarys(secret: bytes, salt: bytes, info: bytes, length: int) -> None:
    assert hkdf(secret, salt, info, length) == HKDF(SHA256(), length, salt, info).derive(secret)


def test_a_key_is_of_one_purpose_session_and_direction() -> None:
    ways = [("mask", SESSION, 1, 2), ("shares", SESSION, 1, 2), ("mask", b"another", 1, 2), ("mask", SESSION, 2, 1)]
    assert len({derive(KEY, *way) for way in ways}) == len(ways)


def test_a_public_key_of_low_order_is_refused() -> None:
    with pytest.raises(ProtocolError, match="no point that a secret can be agreed with"):
        KeyPair.draw(secrets.token_bytes).secret_with(bytes(32))


def test_what_was_sealed_opens_for_whom_it_was_meant() -> None:
    assert unseal(KEY, seal(KEY, b"a share", SESSION, 1, 2), SESSION, 1, 2) == b"a share"


@pytest.mark.parametrize(
    ("key", "agreed", "sender", "receiver", "position"),
    [
        (bytes(32), SESSION, 1, 2, None),  # another key
        (KEY, b"another session!", 1, 2, None),
        (KEY, SESSION, 3, 2, None),
        (KEY, SESSION, 1, 3, None),
        (KEY, SESSION, 1, 2, 0),  # text changed
        (KEY, SESSION, 1, 2, -1),  # tag changed
    ],
)
def test_a_box_with_anything_changed_does_not_open(
    key: bytes, agreed: bytes, sender: int, receiver: int, position: int | None
) -> None:
    box = bytearray(seal(KEY, b"a share", SESSION, 1, 2))
    if position is not None:
        box[position] ^= 1
    with pytest.raises(ProtocolError, match="does not open"):
        unseal(key, bytes(box), agreed, sender, receiver)


def test_a_box_that_was_cut_does_not_open() -> None:
    with pytest.raises(ProtocolError, match="does not open"):
        unseal(KEY, seal(KEY, b"a share", SESSION, 1, 2)[:-1], SESSION, 1, 2)


def test_a_signature_is_of_one_client_and_one_text() -> None:
    held = enrol_identities([4, 9], secrets.token_bytes)
    four, nine = (Identity.read(held[id]["identity"]) for id in (4, 9))
    signature = four.sign(b"who is left")
    assert nine.signed_by(4, signature, b"who is left")
    assert not nine.signed_by(9, signature, b"who is left")
    assert not nine.signed_by(4, signature, b"others")
    assert not nine.signed_by(5, signature, b"who is left")  # in no directory


def test_private_keys_are_not_printed() -> None:
    pair, identity = KeyPair(KEY), Identity(KEY, {1: KEY})
    assert KEY.hex() not in repr(pair) + repr(identity)
    assert str(KEY) not in repr(pair) + repr(identity)


def test_rows_of_bytes_may_be_none() -> None:
    assert byte_rows([], 33).shape == (0, 33)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_without_the_package_one_is_told_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if PROTOCOLS[name].needs != "cryptography":
        pytest.skip("needs another package")

    def missing(module: str) -> None:
        raise ImportError(module)

    monkeypatch.setattr(extra.importlib, "import_module", missing)
    with pytest.raises(ConfigError, match=r"needs cryptography\. Run `pip install 'atoll\[secure\]'`"):
        next(PROTOCOLS[name]().server([1, 2, 3], rng.key("x")))
    with pytest.raises(ConfigError, match="atoll"):
        next(PROTOCOLS[name]().client(1, {"vector": torch.zeros(2, dtype=torch.int64)}, rng.key("x")))
