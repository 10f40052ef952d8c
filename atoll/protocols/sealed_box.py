"""Messages that one key opens: X25519, HKDF-SHA256 and ChaCha20-Poly1305, with a fresh sender's key for each.

The shape of HPKE's base mode (RFC 9180): box = E || AEAD under HKDF(X25519(e, P), E || P || context), where (e, E) is
drawn for this box alone, so the AEAD's key is used once and its nonce may be 0. Nothing in a box says who sealed it,
and boxes of messages of one length have one length.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from atoll.errors import ProtocolError
from atoll.protocols.extra import extra
from atoll.protocols.secure_aggregation import RandomBytes

KEY_BYTES = 32
OVERHEAD = KEY_BYTES + 16  # bytes that a box is longer than its message
_LABEL, _NONCE = b"atoll sealed box 1", bytes(12)
_PRIMITIVES = "cryptography.hazmat.primitives"


@dataclass(frozen=True)
class BoxKey:
    """A pair of keys: whoever has `public` can seal, and only the owner can open."""

    private: bytes = field(repr=False)
    public: bytes

    @classmethod
    def draw(cls, random: RandomBytes) -> BoxKey:
        private = random(KEY_BYTES)
        return cls(private, _x25519().X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw())

    def open(self, box: bytes, context: bytes) -> bytes:
        """What was sealed for this key in this context, unchanged; else a ProtocolError."""
        sender, code = box[:KEY_BYTES], box[KEY_BYTES:]
        if len(code) < OVERHEAD - KEY_BYTES:
            raise ProtocolError(f"sealed box: {len(box)} bytes are too few. It was cut: send it again.")
        cipher = _cipher(_agree(self.private, sender), sender, self.public, context)
        try:
            return cipher.decrypt(_NONCE, code, context)  # type: ignore[no-any-return]
        except extra("cryptography.exceptions", "sealed box:").InvalidTag as e:
            raise ProtocolError("sealed box: does not open. It was changed, or sealed for another key or step.") from e


def seal(public: bytes, message: bytes, context: bytes, random: RandomBytes) -> bytes:
    """A box that only the owner of `public` opens, and only as what `context` says it is.

    >>> import secrets
    >>> owner = BoxKey.draw(secrets.token_bytes)
    >>> owner.open(seal(owner.public, b"share", b"round 3", secrets.token_bytes), b"round 3")
    b'share'
    """
    sender = BoxKey.draw(random)
    cipher = _cipher(_agree(sender.private, public), sender.public, public, context)
    return sender.public + bytes(cipher.encrypt(_NONCE, message, context))


def _agree(private: bytes, public: bytes) -> bytes:
    x25519 = _x25519()
    try:
        other = x25519.X25519PublicKey.from_public_bytes(public)
        return x25519.X25519PrivateKey.from_private_bytes(private).exchange(other)  # type: ignore[no-any-return]
    except ValueError as e:  # a wrong length, or a point of low order
        raise ProtocolError(f"sealed box: a public key of {len(public)} bytes that is none of X25519's.") from e


def _cipher(agreed: bytes, sender: bytes, owner: bytes, context: bytes) -> Any:
    hkdf = extra(f"{_PRIMITIVES}.kdf.hkdf", "sealed box:").HKDF
    sha256 = extra(f"{_PRIMITIVES}.hashes", "sealed box:").SHA256()
    key = hkdf(algorithm=sha256, length=32, salt=None, info=_LABEL + sender + owner + context).derive(agreed)
    return extra(f"{_PRIMITIVES}.ciphers.aead", "sealed box:").ChaCha20Poly1305(key)


def _x25519() -> Any:
    return extra(f"{_PRIMITIVES}.asymmetric.x25519", "sealed box:")
