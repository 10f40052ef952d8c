"""Bytes that are no payload: refused in words of ours, before room is made for what they claim."""

import struct
import subprocess
import sys
import tracemalloc
from zlib import crc32

import msgpack
import pytest
import torch

from atoll.errors import WireError
from atoll.wire import Layout, decode, encode
from atoll.wire.envelope import Envelope
from tests.support.paths import ROOT

VALUES = {"on": torch.tensor([True, False, True]), "levels": torch.tensor([1, 2, 3])}
LAYOUT = Layout.of(VALUES, levels={"kind": "bits", "bits": 3})
DATA = encode(LAYOUT, VALUES, kind="update", round=1, sender=2)
BODY = bytes([1, 0, 1, 0b11010001, 0])


def sealed(*parts: object, empty: tuple[object, ...] = (), body: bytes = BODY, after: bytes = b"") -> bytes:
    """A payload whose lengths and checksum are right, whatever its header says."""
    values = [len(parts), *parts, len(empty), *empty]
    return with_header(b"".join(msgpack.packb(value) for value in values) + after, body)


def with_header(header: bytes, body: bytes = b"") -> bytes:
    return Envelope("update", 1, 2, len(header), len(body)).sealed(header, body)


def changed(at: int, by: bytes) -> bytes:
    return DATA[:at] + by + DATA[at + len(by) :]


ON, LEVELS = ["on", 0, 12, [3], 0, 0], ["levels", 1, 4, [3], 3, 0]


def test_the_payload_that_is_damaged_below_is_one_before():
    assert sealed(ON, LEVELS) == DATA


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "0 bytes are too few"),
        (DATA[:59], "59 bytes are too few"),
        (b"PK" + DATA[2:], "A payload begins with b'ATOL'"),
        (changed(4, b"\2"), "version 2, flags 0. This side reads version 1"),
        (changed(6, b"\1"), "flags 1"),
        (DATA[:-1], "bytes; its lengths say"),
        (DATA + b"\0", "bytes; its lengths say"),
        (changed(40, b"\xff" * 8), "its lengths say 18446744073709"),
        (changed(48, b"\2"), "checksum is wrong"),
        (changed(70, b"\2"), "checksum is wrong"),
        (changed(len(DATA) - 1, b"\2"), "checksum is wrong"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_an_envelope_that_is_wrong_is_refused(data, words):
    with pytest.raises(WireError, match=words):
        decode(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (sealed(ON), "payload: 2 bytes behind its last part"),
        (sealed(ON, LEVELS, body=BODY[:-1]), "levels: needs 2 bytes where 1 are left"),
        (sealed(ON, LEVELS, body=b"\2" + BODY[1:]), "on: a bool that is neither 0 nor 1"),
        (sealed(ON, LEVELS, body=BODY[:-1] + b"\2"), "levels: bits behind its last number are not 0"),
        (sealed(ON, LEVELS, after=b"\0"), "header: 1 bytes behind its end"),
        (sealed(ON, ["levels", 1, 4, [3], 3]), "header: a part of 5 fields"),
        (sealed(ON, ["levels", 3, 4, [3], 3, 0]), "header: kind 3 is unknown"),
        (sealed(ON, ["levels", 1, 13, [3], 3, 0]), "header: dtype 13 is unknown"),
        (sealed(ON, ["levels", 1, 4, [3], 3, -1]), "header: coder -1 is unknown"),
        (sealed(ON, ["levels", 1, 4, [3], 33, 0]), "levels: 33 bits of int64"),
        (sealed(ON, ["levels", 1, 4, [-3], 3, 0]), r"levels: shape \(-3,\)"),
        (sealed(ON, ["levels", 1, 4, [3.0], 3, 0]), "header: a float where a int belongs"),
        (sealed(ON, ["levels", True, 4, [3], 3, 0]), "header: a bool where a int belongs"),
        (sealed(ON, ["levels", 1, 4, [1] * 17, 3, 0]), "header: is not the msgpack of a layout"),
        (sealed(ON, ["on", 1, 4, [3], 3, 0]), "two parts have one path"),
        (sealed(ON, ["on/a", 1, 4, [3], 3, 0]), "or one lies inside another"),
        (sealed(ON, ["l" * 1025, 1, 4, [3], 3, 0]), "header: is not the msgpack of a layout"),
        (sealed(ON, ["far", 2, 4, [0], (1 << 48) + 1, 0], body=bytes(7)), "distinct ones"),
        (sealed(["far", 2, 4, [1], 64, 0], body=b"\1\0\0\0\0"), "far: 0 quotients"),
        (sealed(["x", 0, 11, [1], 0, 2], body=b"\2\0\0\0\2a"), "x: mode 02 is unknown"),
        (sealed(["x", 0, 11, [1], 0, 2], body=b"\0\0\0\0"), "x: mode none is unknown"),
        (sealed(["x", 0, 11, [1], 0, 2], body=b"\3\0\0\0\0ab"), "x: 1 bytes behind its end"),
        (sealed(["x", 0, 11, [1], 0, 2], body=b"\1\0\0\0\0"), "x: needs 1 bytes where 0 are left"),
        (sealed(ON, LEVELS, empty=("on",)), "two parts have one path"),
        (sealed(ON, LEVELS, empty=("a/" * 40,)), "32 levels"),
        (sealed(ON, {}), "header: a dict where a list belongs"),
        (sealed(ON, {"a": 1}), "header: is not the msgpack of a layout"),
        (sealed(ON, ["levels", 1, 4, [1 << 62, 1 << 62], 3, 0]), "its tensors have 17014118346046923"),
        (sealed(ON, ["levels", 1, 4, [0, 1 << 62], 3, 0]), "its tensors have 36893488147419103"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_header_that_does_not_fit_its_body_is_refused(data, words):
    with pytest.raises(WireError, match=words):
        decode(data)


def test_a_kind_of_other_letters_is_refused():
    for kind in (b"", b"Up", b"up\0date", b"\xff"):
        first = struct.pack("<4sHH24sQQII", b"ATOL", 1, 0, kind, 2, 0, 1, 2)
        rest = b"\0\0"
        with pytest.raises(WireError, match="payload: kind"):
            decode(first + struct.pack("<I", crc32(rest, crc32(first))) + rest)


def test_the_caller_decides_how_much_is_decoded():
    assert decode(DATA, most=27).tree["levels"].tolist() == [1, 2, 3]
    with pytest.raises(WireError, match="have 27 bytes; 26 are allowed"):
        decode(DATA, most=26)


BOMBS = {
    "a shape": sealed(["x", 0, 1, [1 << 28], 0, 0], body=b""),
    "an entropy code of many symbols": sealed(["x", 1, 11, [1 << 29], 1, 1], body=struct.pack("<IB2HI", 9, 1, 1, 1, 1)),
    "positions": sealed(["x", 2, 4, [1 << 27], 1 << 40, 0], body=struct.pack("<I", 0)),
    "nested arrays": with_header(b"\x01" + b"\xdc\x00\x10" * 300_000),
    "a long array": with_header(b"\x01\xdd\xff\xff\xff\xff"),
    "a long text": with_header(b"\x01\x96\xdb\xff\xff\xff\xff"),
    "many parts": sealed(*([ON] * 60_000)),
    "a long header": sealed(after=bytes(2 << 20)),
}


@pytest.mark.parametrize("data", BOMBS.values(), ids=BOMBS)
def test_little_data_that_claims_much_takes_little_room(data):
    allowed = 4 << 20
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decode(data, allowed)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < allowed + 4 * len(data)


@pytest.mark.slow
def test_five_thousand_mutations_are_decoded_or_refused():
    command = [sys.executable, str(ROOT / "benchmarks" / "wire_fuzz.py"), "--cases", "5000", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "5,000 cases" in done.stdout
    assert " 0 failed" in done.stdout
