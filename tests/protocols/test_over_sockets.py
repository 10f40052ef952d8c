"""The driver over TCP: the same results as in one process, and every way to be lost is a dropout."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from atoll import rng
from atoll.core import Client, Message, Protocol, Server
from atoll.errors import ProtocolError, WireError
from atoll.protocols import (
    AdditiveSharing,
    LightSecAgg,
    SecAgg,
    SecAggPlus,
    SecureAggregation,
    SecureShuffle,
    run_protocol,
)
from atoll.protocols.over_sockets import Served, serve, take_part
from atoll.protocols.paillier_aggregation import PaillierAggregation
from atoll.tree import Tree
from atoll.wire import SERVER, Layout, decode, encode
from tests.support.vectors import plain_sum, vectors

KEY = rng.key("sockets")
PROTOCOL = PaillierAggregation(key_bits=512, insecure_seed=True)
IDS = [1, 4, 6]
Address = tuple[str, int]


@dataclass(frozen=True)
class Talk(Protocol):
    """So many steps, in which clients count; those with an even id are silent at step `silent`."""

    steps: int = 3
    silent: int = -1

    def client(self, id: int, own: Tree, key: Tensor) -> Client:
        yield None
        for step in range(self.steps):
            yield None if step == self.silent and id % 2 == 0 else Message("count", {"step": torch.tensor(step)})

    def server(self, ids: Sequence[int], key: Tensor) -> Server:
        answers = []
        for _ in range(self.steps):
            answers.append((yield {id: Message("go", {}) for id in ids}))
        return {str(i): torch.tensor(sorted(inbox)) for i, inbox in enumerate(answers)}


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


def join(pool: ThreadPoolExecutor, listener: socket.socket, protocol: Protocol, own: dict[int, Tree]) -> list[Future]:
    address = listener.getsockname()[:2]
    return [
        pool.submit(take_part, protocol, id, x, rng.fold_host(KEY, id), address, seconds=5) for id, x in own.items()
    ]


def frame(kind: str, sender: int, step: int = 0, body: Tree | None = None) -> bytes:
    data = encode(Layout.of(body or {}), body or {}, kind=kind, round=step, sender=sender)
    return struct.pack("<I", len(data)) + data


def served_beside(
    listener: socket.socket, pool: ThreadPoolExecutor, stranger: Callable[[socket.socket], None], seconds: float = 1.0
) -> Served:
    """A talk with two clients that keep to it, and client 9, whose connection is in a stranger's hands."""

    def connect() -> None:
        with socket.create_connection(listener.getsockname()[:2]) as connection:
            stranger(connection)

    join(pool, listener, Talk(), {id: {} for id in (1, 3)})
    pool.submit(connect)
    return serve(Talk(), [1, 3, 9], KEY, listener, seconds=seconds)


def test_the_result_is_that_of_one_process(listener: socket.socket, pool: ThreadPoolExecutor) -> None:
    own = vectors(IDS, 30, 32)
    clients = join(pool, listener, PROTOCOL, own)
    served = serve(PROTOCOL, IDS, rng.fold_name(KEY, "server"), listener, seconds=5)
    result, transcript = run_protocol(PROTOCOL, own, KEY)
    assert torch.equal(served.result["sum"], result["sum"])
    assert torch.equal(served.result["ids"], result["ids"])
    assert served.lost == {}
    assert [client.result() for client in clients] == [None] * 3
    messages = [Layout.of(step[4].body).fixed_bytes or 0 for step in transcript.up if 4 in step]
    hello = len(frame("hello", 4))
    assert served.bytes_up[4] == hello + sum(4 + size for size in messages)  # every frame has a length before it


def test_who_does_not_connect_is_lost_and_the_others_go_on(listener: socket.socket, pool: ThreadPoolExecutor) -> None:
    own = vectors(IDS, 30, 32)
    join(pool, listener, PROTOCOL, {id: own[id] for id in (1, 6)})
    served = serve(PROTOCOL, IDS, KEY, listener, seconds=0.5)
    assert served.lost == {4: "did not connect within 0.5 seconds"}
    assert served.result["ids"].tolist() == [1, 6]
    assert served.result["sum"].tolist() == plain_sum(own, (1, 6), 32).tolist()


def test_who_has_nothing_to_say_stays(listener: socket.socket, pool: ThreadPoolExecutor) -> None:
    protocol = Talk(silent=1)
    clients = join(pool, listener, protocol, {id: {} for id in (1, 2, 3)})
    began = time.monotonic()
    served = serve(protocol, [1, 2, 3], KEY, listener, seconds=5)
    assert [served.result[str(step)].tolist() for step in range(3)] == [[1, 2, 3], [1, 3], [1, 2, 3]]
    assert served.lost == {}
    assert time.monotonic() - began < 4  # nobody waited for it
    assert [client.result() for client in clients] == [None] * 3


def test_who_hangs_up_is_lost(listener: socket.socket, pool: ThreadPoolExecutor) -> None:
    def hang_up(connection: socket.socket) -> None:
        connection.sendall(frame("hello", 9))
        connection.recv(1000)

    served = served_beside(listener, pool, hang_up, seconds=5)
    assert served.lost == {9: "hung up"}
    assert served.result["0"].tolist() == [1, 3]


def test_who_is_silent_for_too_long_is_lost(listener: socket.socket, pool: ThreadPoolExecutor) -> None:
    gone = threading.Event()

    def wait(connection: socket.socket) -> None:
        connection.sendall(frame("hello", 9))
        gone.wait(5)

    served = served_beside(listener, pool, wait)
    gone.set()
    assert served.lost == {9: "did not answer within 1 seconds"}
    assert served.result["2"].tolist() == [1, 3]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (frame("count", 9, 1), "a message of 9 for step 1 came where 0 was due"),
        (frame("count", 3, 0), "a message of 3 for step 0"),
        (struct.pack("<I", 100) + bytes(100), "payload: begins with"),
        (struct.pack("<I", 2**31), "a frame of 2147483648 bytes; 1073741824 are allowed"),
        (frame("count", 9)[:-1] + b"\xff", "checksum is wrong"),
        (b"GET / HTTP/1.1\r\n\r\n", "a frame of 542393671 bytes|hung up"),
    ],
    ids=["replayed", "of another", "no payload", "too long", "damaged", "not ours"],
)
def test_who_sends_what_is_no_answer_is_lost(
    answer: bytes, why: str, listener: socket.socket, pool: ThreadPoolExecutor
) -> None:
    def send(connection: socket.socket) -> None:
        connection.sendall(frame("hello", 9))
        connection.recv(1000)
        connection.sendall(answer)

    served = served_beside(listener, pool, send, seconds=5)
    assert served.lost.keys() == {9}
    assert pytest.approx([1, 3]) == served.result["2"].tolist()
    assert any(part in served.lost[9] for part in why.split("|")), served.lost


def cut(message: Message) -> Message:
    """The answer with its vector, or the boxes made from it, one number short."""
    short = {name: message.body[name][..., :-1] for name in ("vector", "boxes", "box") if name in message.body}
    if "numbers" in message.body:
        short["numbers"] = message.body["numbers"] - 1
    return message._replace(body={**message.body, **short})


@dataclass(frozen=True)
class CutsOne(Protocol):
    """A client of this protocol whose answers of one kind are cut."""

    inner: Protocol
    kind: str

    def client(self, id: int, own: Tree, key: Tensor) -> Client:
        client = self.inner.client(id, own, key)
        next(client)
        message = yield None
        while True:
            reply = client.send(message)
            assert reply is not None
            message = yield cut(reply) if reply.kind == self.kind else reply

    def server(self, ids: Sequence[int], key: Tensor) -> Server:
        raise NotImplementedError

    def layout(self, message: Message) -> Layout:
        return self.inner.layout(message)


@pytest.mark.parametrize(
    ("protocol", "kind"),
    [
        (SecAgg(threshold=3), "masked"),
        (SecAggPlus(dropout=0.4), "masked"),
        (LightSecAgg(threshold=3), "coded"),
        (LightSecAgg(threshold=3), "masked"),
        (PROTOCOL, "ciphertexts"),
        (SecureShuffle(), "sealed"),
    ],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_who_sends_a_vector_that_is_one_short_is_lost_and_the_others_go_on(
    protocol: SecureAggregation, kind: str, listener: socket.socket, pool: ThreadPoolExecutor
) -> None:
    ids = [1, 3, 4, 6, 9]
    own = vectors(ids, 10, 32)
    address = listener.getsockname()[:2]
    pool.submit(take_part, CutsOne(protocol, kind), 4, own[4], KEY, address, seconds=5)
    join(pool, listener, protocol, {id: own[id] for id in ids if id != 4})
    served = serve(protocol, ids, rng.fold_name(KEY, "server"), listener, seconds=5)
    assert served.lost.keys() == {4}
    assert f"{kind!r} is not like that of the others" in served.lost[4]
    assert served.result["ids"].tolist() == [1, 3, 6, 9]
    assert served.result["sum"].tolist() == plain_sum(own, [1, 3, 6, 9], 32).tolist()


def test_where_nobody_may_be_lost_a_vector_that_is_one_short_ends_the_round(
    listener: socket.socket, pool: ThreadPoolExecutor
) -> None:
    ids = [1, 3, 4, 6]
    protocol, own = AdditiveSharing(), vectors([1, 3, 4, 6], 10, 32)
    pool.submit(take_part, CutsOne(protocol, "added"), 4, own[4], KEY, listener.getsockname()[:2], seconds=5)
    join(pool, listener, protocol, {id: own[id] for id in ids if id != 4})
    with pytest.raises(ProtocolError, match="3 clients answered with 'added', and the threshold is 4"):
        serve(protocol, ids, rng.fold_name(KEY, "server"), listener, seconds=5)


def test_where_no_shape_is_that_of_most_nobody_is_singled_out() -> None:
    two, three = (Message("masked", {"vector": torch.zeros(n)}) for n in (2, 3))
    assert SecAgg().faults({1: two, 2: three}) == SecAgg().faults({}) == {}
    assert SecAgg().faults({1: two, 2: three, 3: two}).keys() == {2}


@pytest.mark.parametrize(
    "hello",
    [frame("hello", 77), frame("count", 9), b"\0\0\0\0", frame("hello", 9, body={"x": torch.zeros(2000)})],
    ids=["a stranger", "no hello", "empty", "long"],
)
def test_who_is_not_expected_is_not_let_in(hello: bytes, listener: socket.socket, pool: ThreadPoolExecutor) -> None:
    served = served_beside(listener, pool, lambda connection: connection.sendall(hello))
    assert served.lost == {9: "did not connect within 1 seconds"}
    assert served.result["0"].tolist() == [1, 3]


def test_nobody_takes_the_place_of_who_is_there(listener: socket.socket, pool: ThreadPoolExecutor) -> None:
    """A second client 9 is turned away; the first one stays."""
    turned_away: list[bytes] = []

    def twice(connection: socket.socket) -> None:
        connection.sendall(frame("hello", 9))
        time.sleep(0.1)
        with socket.create_connection(listener_address) as second:
            second.sendall(frame("hello", 9))
            second.settimeout(5)
            turned_away.append(second.recv(1))
        time.sleep(0.1)

    listener_address = listener.getsockname()[:2]
    join(pool, listener, Talk(), {1: {}})

    def connect() -> None:
        with socket.create_connection(listener_address) as connection:
            twice(connection)

    pool.submit(connect)
    served = serve(Talk(), [1, 3, 9], KEY, listener, seconds=0.5)
    assert turned_away == [b""]
    assert served.lost[3].startswith("did not connect")
    assert served.lost[9] == "hung up"


def test_where_the_protocol_ends_without_a_result_all_are_told(
    listener: socket.socket, pool: ThreadPoolExecutor
) -> None:
    """The server's error is raised there; clients see that it hung up without an end."""
    clients = join(pool, listener, PROTOCOL, vectors([1], 5, 32))
    with pytest.raises(ProtocolError, match="1 keys came, the threshold is 2"):
        serve(PROTOCOL, IDS, KEY, listener, seconds=0.3)
    with pytest.raises(ProtocolError, match="server: hung up before it said that it is over"):
        clients[0].result()


def from_server(pool: ThreadPoolExecutor, listener: socket.socket, data: bytes, **given: float) -> None:
    """A client whose server says this."""
    client = pool.submit(take_part, Talk(), 1, {}, KEY, listener.getsockname()[:2], **given)
    connection, _ = listener.accept()
    with connection:
        connection.recv(1000)
        connection.sendall(data)
        client.result(10)


def test_a_client_refuses_what_is_not_the_servers_next_message(
    listener: socket.socket, pool: ThreadPoolExecutor
) -> None:
    with pytest.raises(ProtocolError, match="for step 1 came where 0 was due"):
        from_server(pool, listener, frame("go", SERVER, 1))
    with pytest.raises(ProtocolError, match="a message of 3 for step 0"):
        from_server(pool, listener, frame("go", 3))
    with pytest.raises(WireError, match="50 are allowed"):
        from_server(pool, listener, frame("go", SERVER), most_bytes=50)
    with pytest.raises(WireError, match="begins with"):
        from_server(pool, listener, struct.pack("<I", 80) + bytes(80))
    with pytest.raises(ProtocolError, match="sent nothing for too long"):
        from_server(pool, listener, b"", seconds=0.2)


def test_an_end_is_an_end(listener: socket.socket, pool: ThreadPoolExecutor) -> None:
    from_server(pool, listener, frame("end", SERVER))


def test_frames_are_payloads_of_the_wire_with_a_length_before_them() -> None:
    data = frame("count", 9, 2, {"x": torch.arange(3)})
    (length,) = struct.unpack("<I", data[:4])
    payload = decode(data[4:])
    assert length == len(data) - 4
    assert (payload.kind, payload.sender, payload.round) == ("count", 9, 2)
