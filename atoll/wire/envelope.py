"""The first 60 bytes of every payload: what it is, whose, and how long. Checked before anything else is read."""

import re
import struct
import zlib
from typing import NamedTuple

from atoll.errors import WireError

MAGIC = b"ATOL"
VERSION = 1
SERVER = (1 << 64) - 1  # the sender of a broadcast
MOST_HEADER = 1 << 20  # bytes
ENVELOPE = struct.Struct("<4sHH24sQQIII")  # magic, version, flags, kind, sender, body, round, header, crc32
_SUMMED = ENVELOPE.size - 4  # the checksum is of all bytes but its own
_KIND = re.compile(rb"[a-z][a-z0-9_.-]{0,23}")


class Envelope(NamedTuple):
    """What stands before header and body."""

    kind: str
    round: int
    sender: int
    header_bytes: int
    body_bytes: int

    def sealed(self, header: bytes, body: bytes) -> bytes:
        """The whole payload."""
        first = ENVELOPE.pack(MAGIC, VERSION, 0, *self._fields_in_order(), 0)[:_SUMMED]
        return b"".join((first, struct.pack("<I", _checksum(first, header, body)), header, body))

    def _fields_in_order(self) -> tuple[bytes, int, int, int, int]:
        kind = self.kind.encode()
        if not _KIND.fullmatch(kind):
            raise WireError(f"kind: {self.kind!r}. Use 1 to 24 letters such as 'update' or 'masked_input'.")
        for name, number, bits in (("round", self.round, 32), ("sender", self.sender, 64)):
            if not 0 <= number < 1 << bits:
                raise WireError(f"{name}: {number} does not fit in {bits} bits. Count from 0.")
        return kind, self.sender, self.body_bytes, self.round, self.header_bytes


def open_envelope(data: memoryview) -> tuple[Envelope, memoryview, memoryview]:
    """The envelope, the header and the body, whose lengths and checksum are right."""
    if len(data) < ENVELOPE.size:
        raise WireError(f"payload: {len(data)} bytes are too few. It has {ENVELOPE.size} before its header.")
    magic, version, flags, kind, sender, body, round, header, checksum = ENVELOPE.unpack_from(data)
    if magic != MAGIC:
        raise WireError(f"payload: begins with {magic!r}. A payload begins with {MAGIC!r}.")
    if version != VERSION or flags:
        raise WireError(f"payload: version {version}, flags {flags}. This side reads version {VERSION} without flags.")
    if len(data) != ENVELOPE.size + header + body:
        raise WireError(f"payload: {len(data)} bytes; its lengths say {ENVELOPE.size + header + body}. It is cut.")
    if header > MOST_HEADER:
        raise WireError(f"payload: a header of {header} bytes. It has at most {MOST_HEADER}.")
    rest = data[ENVELOPE.size :]
    if checksum != _checksum(data[:_SUMMED], rest):
        raise WireError("payload: its checksum is wrong. It was damaged on its way: ask for it again.")
    name = kind.rstrip(b"\0")
    if not _KIND.fullmatch(name):
        raise WireError(f"payload: kind {name!r}. It is 1 to 24 letters such as 'update'.")
    return Envelope(name.decode(), round, sender, header, body), rest[:header], rest[header:]


def _checksum(*pieces: bytes | memoryview) -> int:
    checksum = 0
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    return checksum
