"""Messages that one key opens: X25519, HKDF-SHA256 and ChaCha20-Poly1305, with a fresh sender's key for each.

The shape of HPKE's base mode (RFC 9180): box = E || AEAD under HKDF(X25519(e, P), E || P || context), where (e, E) is
drawn for this box alone, so the AEAD's key is used once and its nonce may be 0. Nothing in a box says who sealed it,
and boxes of messages of one length have one length.
"""

from __future__ import annotations

from typing import Any

from atoll.errors import ProtocolError
from atoll.protocols.extra import extra
from atoll.protocols.keys import KEY_BYTES, TAG_BYTES, KeyPair, hkdf
from atoll.protocols.secure_aggregation import RandomBytes

OVERHEAD = KEY_BYTES + TAG_BYTES  # bytes that a box is longer than its message
_LABEL, _NONCE = b"atoll sealed box 1", bytes(12)


class BoxKey(KeyPair):
    """A pair of keys: whoever has `public` can seal, and only the owner can open."""

    def open(self, box: bytes, context: bytes) -> bytes:
        """What was sealed for this key in this context, unchanged; else a ProtocolError."""
        sender, code = box[:KEY_BYTES], box[KEY_BYTES:]
        if len(code) < TAG_BYTES:
            raise ProtocolError(f"sealed box: {len(box)} bytes are too few. It was cut: send it again.")
        cipher = _cipher(self.secret_with(sender), sender, self.public, context)
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
    sender = KeyPair.draw(random)
    cipher = _cipher(sender.secret_with(public), sender.public, public, context)
    return sender.public + bytes(cipher.encrypt(_NONCE, message, context))


def _cipher(agreed: bytes, sender: bytes, owner: bytes, context: bytes) -> Any:
    key = hkdf(agreed, b"", _LABEL + sender + owner + context)
    return extra("cryptography.hazmat.primitives.ciphers.aead", "sealed box:").ChaCha20Poly1305(key)
