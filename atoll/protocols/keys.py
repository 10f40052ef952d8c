"""Keys between two clients: X25519 agreement, HKDF, authenticated encryption; and signatures of who must be known.

A shared secret never serves two purposes: every key is derived for one purpose, one run of the protocol (`session`)
and one sender and receiver. A key that seals seals one box, so that its nonce can be constant.

RFC 7748 (X25519), RFC 5869 (HKDF), RFC 8439 (ChaCha20-Poly1305), RFC 8032 (Ed25519).
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch

from atoll.errors import ProtocolError
from atoll.protocols.extra import extra
from atoll.protocols.secure_aggregation import RandomBytes
from atoll.tree import Tree

KEY_BYTES, TAG_BYTES, SIGNATURE_BYTES, SESSION_BYTES = 32, 16, 64, 16
_NONCE = bytes(12)


def need_cryptography(name: str) -> None:
    """A protocol asks for the package before its first key, not in the middle of a round."""
    extra("cryptography", name)


@dataclass(frozen=True, repr=False)
class KeyPair:
    """An X25519 key and what others may know of it. Never printed, never in a record."""

    private: bytes

    @classmethod
    def draw(cls, random: RandomBytes) -> Self:
        return cls(random(KEY_BYTES))

    @cached_property
    def public(self) -> bytes:
        return bytes(self._key.public_key().public_bytes_raw())

    def secret_with(self, other: bytes) -> bytes:
        """The same 32 bytes for both: this private key with the other's public one (RFC 7748, section 6.1)."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        try:
            return bytes(self._key.exchange(X25519PublicKey.from_public_bytes(other)))
        except ValueError:
            raise ProtocolError("a public key is no point that a secret can be agreed with. Draw a new one.") from None

    @cached_property
    def _key(self) -> Any:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        return X25519PrivateKey.from_private_bytes(self.private)


def derive(secret: bytes, purpose: str, session: bytes, sender: int, receiver: int) -> bytes:
    """A key of 32 bytes for one purpose, session and direction: HKDF-SHA256 (RFC 5869)."""
    info = b"".join([b"atoll ", purpose.encode(), b"\0", _number(sender), _number(receiver)])
    return hkdf(secret, session, info)


def hkdf(secret: bytes, salt: bytes, info: bytes, length: int = KEY_BYTES) -> bytes:
    """HKDF-SHA256: the standard library's HMAC is quicker for two blocks than a context of OpenSSL's.

    >>> len(hkdf(bytes(32), b"salt", b"purpose"))
    32
    """
    pseudo_random_key = hmac.digest(salt or bytes(32), secret, "sha256")
    blocks, last = b"", b""
    for counter in range(1, -(-length // 32) + 1):
        last = hmac.digest(pseudo_random_key, last + info + bytes([counter]), "sha256")
        blocks += last
    return blocks[:length]


def seal(key: bytes, text: bytes, agreed: bytes, sender: int, receiver: int) -> bytes:
    """The text, encrypted; authenticated with what both agree on, and whom it is from and for. A key is used once."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(key).encrypt(_NONCE, text, agreed + _number(sender) + _number(receiver))


def unseal(key: bytes, box: bytes, agreed: bytes, sender: int, receiver: int) -> bytes:
    """What was sealed; a ProtocolError where key, box, sender, receiver or what they agree on are other ones."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, box, agreed + _number(sender) + _number(receiver))
    except InvalidTag:
        raise ProtocolError(
            f"client {receiver}: the box from client {sender} does not open: a key or the box was changed on its "
            "way. Start a new round; if it happens again, do not trust the server."
        ) from None


@dataclass(frozen=True, repr=False)
class Identity:
    """A client's signing key, and the verification keys of all, from whom all trust (a public key infrastructure)."""

    private: bytes
    directory: Mapping[int, bytes]

    @classmethod
    def read(cls, held: Tree) -> Identity:
        """From the tree that `enrol` gave."""
        publics = zip(held["ids"].tolist(), held["public"].numpy(), strict=True)
        return cls(held["private"].numpy().tobytes(), {id: row.tobytes() for id, row in publics})

    def sign(self, text: bytes) -> bytes:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.private).sign(text)

    def signed_by(self, id: int, signature: bytes, text: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        if id not in self.directory:
            return False
        try:
            Ed25519PublicKey.from_public_bytes(self.directory[id]).verify(signature, text)
        except InvalidSignature:
            return False
        return True


def enrol_identities(ids: Sequence[int], random: RandomBytes) -> dict[int, Tree]:
    """A signing key for each client, and a directory of all verification keys: {"identity": ...} by client."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    privates = {id: random(KEY_BYTES) for id in sorted(ids)}
    publics = [Ed25519PrivateKey.from_private_bytes(x).public_key().public_bytes_raw() for x in privates.values()]
    known = {"ids": torch.tensor(list(privates)), "public": byte_rows(publics, KEY_BYTES)}
    return {id: {"identity": {"private": byte_row(private), **known}} for id, private in privates.items()}


def byte_row(data: bytes) -> torch.Tensor:
    """Bytes as they travel."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)


def byte_rows(rows: Sequence[bytes], width: int) -> torch.Tensor:
    """Rows of equally many bytes, as they travel: (rows, width)."""
    return byte_row(b"".join(rows)).reshape(len(rows), width)


def _number(id: int) -> bytes:
    return id.to_bytes(8, "little")
