"""Frames on a stream: the same however it is cut, and nothing but a WireError for bytes of others."""

import random
import struct
import tracemalloc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.errors import ProtocolError, WireError
from atoll.messages.frames import FrameReader, encoded, framed, layout_of, tensors
from atoll.messages.handshake import HELLO_BYTES, Introduction, checked
from atoll.messages.link_numbers import LinkNumbers
from atoll.messages.worker_topology import WorkerTopology
from atoll.wire import Layout, decode
from tests.support.payloads import payloads

CASES = 3000
MOST = 4096


@given(st.lists(st.binary(max_size=60), max_size=8), st.data())
def test_a_stream_gives_the_same_frames_however_it_is_cut(bodies: list[bytes], data) -> None:
    stream, reader, frames = b"".join(map(framed, bodies)), FrameReader(100), []
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        frames += reader.feed(stream[a:b])
    assert frames == bodies
    assert reader.waiting == 0


def test_a_frame_that_is_too_long_is_refused_before_it_comes() -> None:
    reader = FrameReader(1000)
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="a frame of 4294967295 bytes; 1000 are allowed"):
            reader.feed(struct.pack("<I", (1 << 32) - 1))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@given(payloads(plain=True))
def test_layouts_that_are_kept_are_those_of_the_wire(example) -> None:
    values, _ = example
    assert layout_of(values) == Layout.of(values)


@settings(max_examples=200)
@given(st.binary(max_size=300))
def test_any_bytes_are_frames_or_a_wire_error(data: bytes) -> None:
    take(data)


def take(data: bytes) -> str:
    """What a link does with what comes from its peer, worker 1."""
    try:
        numbers = LinkNumbers()
        for payload in FrameReader(MOST).feed(data):
            numbers.take(checked(decode(payload, MOST), 1).round)
    except (WireError, ProtocolError) as e:
        return str(e).partition(":")[0]
    return "taken"


def test_mutated_frames_are_taken_or_refused() -> None:
    """Bits, cuts, insertions and repeats, in what were three messages and a hello."""
    draw = random.Random(0)
    introduction = Introduction(WorkerTopology.complete(["a", "b"]), 1)
    bodies = [{"w": torch.arange(5.0), "round": 3}, {}, {"deep": {"er": torch.zeros(2, 2)}}]
    messages = [encoded("update", body, i + 1, 1, None, MOST) for i, body in enumerate(bodies)]
    stream = b"".join(map(framed, [introduction.hello(0), *messages]))
    outcomes: dict[str, int] = {}
    for _ in range(CASES):
        outcome = take(mutated(stream, draw))
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert sum(outcomes.values()) == CASES
    assert outcomes["taken"] > 10  # cut at the end of a frame, say
    assert len(outcomes) > 5


def test_mutated_hellos_are_read_or_refused() -> None:
    draw = random.Random(1)
    introduction = Introduction(WorkerTopology.complete(["a", "b"]), 1)
    hello, taken = introduction.hello(7), 0
    assert introduction.read(hello).received == 7
    for _ in range(CASES):
        data = mutated(hello, draw)
        try:
            taken += introduction.read(data) is not None
        except (WireError, ProtocolError):
            assert data != hello
    assert taken < CASES // 10
    assert len(hello) < HELLO_BYTES


def mutated(data: bytes, draw: random.Random) -> bytes:
    buffer = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at, size = draw.randrange(len(buffer) + 1), draw.choice((1, 2, 4, 30))
        match draw.randrange(4):
            case 0 if buffer:
                buffer[at % len(buffer)] ^= 1 << draw.randrange(8)
            case 1:
                del buffer[at : at + size]
            case 2:
                buffer[at:at] = draw.randbytes(size)
            case 3:
                buffer[at:at] = buffer[at : at + size]
    return bytes(buffer)


def test_numbers_travel_as_tensors_without_axes() -> None:
    assert {name: (x.item(), x.dtype) for name, x in tensors({"a": 1, "b": True, "c": 0.5}, "").items()} == {
        "a": (1, torch.int64),
        "b": (True, torch.bool),
        "c": (0.5, torch.float64),
    }
