"""The driver: what it counts is what the wire has."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from atoll import tree
from atoll.core import Client, Message, Protocol, Server
from atoll.protocols import run_protocol
from atoll.tree import Tree
from atoll.wire import SERVER, encode
from tests.support.secure import KEY, PROTOCOLS, vectors


@pytest.mark.parametrize("name", PROTOCOLS)
def test_bytes_are_lengths_of_payloads(name: str) -> None:
    protocol = PROTOCOLS[name]
    _, log = run_protocol(
        protocol, vectors(protocol, 5), KEY, lambda step, id: (step, id) == (9, 2), over_wire=True, round=3
    )
    for steps, sizes in ((log.down, log.down_bytes), (log.up, log.up_bytes)):
        assert len(steps) == len(sizes) > 0
        for messages, counted in zip(steps, sizes, strict=True):
            for id, message in messages.items():
                layout = protocol.layout(message)
                sender = id if steps is log.up else SERVER
                assert counted[id] == len(encode(layout, message.body, kind=message.kind, round=3, sender=sender))


@pytest.mark.parametrize("name", PROTOCOLS)
def test_over_the_wire_nothing_is_lost(name: str) -> None:
    protocol = PROTOCOLS[name]
    results = [run_protocol(protocol, vectors(protocol, 5), KEY, over_wire=wire)[0] for wire in (False, True)]
    assert tree.digest(results[0]) == tree.digest(results[1])


@pytest.mark.parametrize(("name", "bits"), [("secagg", 32), ("light_secagg, 20 bits", 31), ("additive", 32)])
def test_masked_vectors_travel_in_as_many_bits_as_they_have(name: str, bits: int) -> None:
    protocol = PROTOCOLS[name]
    step = protocol.answers().index(protocol.vector_kind)
    sizes = []
    for size in (8_000, 16_000):  # of which both shapes take three bytes
        _, log = run_protocol(protocol, vectors(protocol, 3, size), KEY, over_wire=True)
        sizes.append(log.up_bytes[step][2])
    assert sizes[1] - sizes[0] == 8_000 * bits // 8


def test_without_the_wire_no_bytes_are_counted_and_messages_need_not_be_kept() -> None:
    protocol = PROTOCOLS["secagg"]
    _, log = run_protocol(protocol, vectors(protocol, 4), KEY, keep_messages=False)
    assert log.up == log.down == log.up_bytes == log.down_bytes == [{}] * 4


def test_seconds_are_those_of_each_party() -> None:
    _, log = run_protocol(Slow(), {1: {}, 5: {}}, KEY)
    assert [sorted(step) for step in log.client_seconds] == [[1, 5]]
    assert log.client_seconds[0][5] > 0.04 > log.client_seconds[0][1]
    assert len(log.server_seconds) == 2
    assert log.server_seconds[1] > 0.04 > log.server_seconds[0]


def test_who_drops_out_took_no_seconds_and_sent_no_bytes() -> None:
    protocol = PROTOCOLS["secagg"]
    _, log = run_protocol(protocol, vectors(protocol, 4), KEY, lambda step, id: (step, id) == (2, 9), over_wire=True)
    assert [9 in step for step in log.up_bytes] == [True, True, False, False]
    assert [9 in step for step in log.client_seconds] == [True, True, False, False]
    assert [9 in step for step in log.down_bytes] == [True, True, True, False]


def test_what_clients_are_enrolled_with_is_theirs() -> None:
    result, _ = run_protocol(Enrolled(), {1: {"x": torch.tensor(10)}, 2: {"x": torch.tensor(20)}}, KEY)
    assert result == {"total": torch.tensor(33)}


def busy(seconds: float) -> None:
    import time

    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


class Slow(Protocol):
    def client(self, id: int, own: Tree, key: Tensor) -> Client:
        yield None
        busy(0.01 * id)
        yield Message("done", {})

    def server(self, ids: Sequence[int], key: Tensor) -> Server:
        yield {id: Message("go", {}) for id in ids}
        busy(0.05)
        return {}


class Enrolled(Protocol):
    def enrol(self, ids: Sequence[int], key: Tensor) -> dict[int, Tree]:
        return {id: {"more": torch.tensor(id)} for id in ids}

    def client(self, id: int, own: Tree, key: Tensor) -> Client:
        yield None
        yield Message("sum", {"x": own["x"] + own["more"]})

    def server(self, ids: Sequence[int], key: Tensor) -> Server:
        inbox = yield {id: Message("go", {}) for id in ids}
        return {"total": sum((m.body["x"] for m in inbox.values()), torch.tensor(0))}
