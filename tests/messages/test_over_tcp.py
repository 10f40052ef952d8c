"""Over TCP: the results of one process, and every way to lose a connection or a neighbour, as the page says."""

import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from atoll.errors import ConfigError, ProtocolError
from atoll.messages import AddressList, ConnectionLimits, Ended, Mail, Post, Worker, WorkerTopology, run, run_worker
from atoll.messages.frames import FrameReader, encoded, framed
from atoll.messages.handshake import ACK, Introduction, word
from atoll.messages.worker import Handler
from atoll.wire import decode
from tests.support.cutting_proxy import CuttingProxy
from tests.support.message_workers import Adder, Answerer, Failing, Silent, adder_or_answerer
from tests.support.worker_threads import QUICK, WorkerThreads

STAR = WorkerTopology.star("server", ["client-0", "client-1"])
PAIR = WorkerTopology.star("server", ["client-0"])


@pytest.fixture
def star() -> Iterator[WorkerThreads]:
    threads = WorkerThreads(STAR)
    yield threads
    threads.close()


@pytest.fixture
def pair() -> Iterator[WorkerThreads]:
    threads = WorkerThreads(PAIR)
    yield threads
    threads.close()


def sums(done: Ended) -> dict[str, int]:
    return {name: int(x) for name, x in done.results["server"]["sums"].items()}


def test_the_results_are_those_of_one_process(star: WorkerThreads) -> None:
    done = star.run(adder_or_answerer)
    here = run({name: adder_or_answerer(name) for name in STAR.names}, STAR)
    assert sums(done["server"]) == sums(here) == {"client-0": 6, "client-1": 12}
    assert all(not ended.gone and not ended.refused for ended in done.values())


def test_everybody_may_talk_to_everybody() -> None:
    ring = WorkerTopology.complete(["a", "b", "c"])

    class Says(Worker):
        """Its index to all; ends with the sum of theirs."""

        def __init__(self) -> None:
            self.heard: dict[str, int] = {}

        def begin(self, post: Post) -> None:
            post.send_all("index", {"is": "abc".index(post.name)})

        def handlers(self) -> dict[str, Handler]:
            return {"index": self.on_index}

        def on_index(self, post: Post, mail: Mail) -> None:
            self.heard[mail.sender] = int(mail.body["is"])
            if len(self.heard) == 2:
                post.end({"sum": sum(self.heard.values())})

    threads = WorkerThreads(ring)
    done = threads.run(lambda name: Says())
    threads.close()
    assert {name: int(ended.results[name]["sum"]) for name, ended in done.items()} == {"a": 3, "b": 2, "c": 1}


@pytest.mark.parametrize("cuts", [(1, 50), (300, 500), (400, 400, 400), (301, 302, 303, 304)], ids=str)
def test_a_connection_that_is_cut_is_made_again_and_nothing_is_lost_or_doubled(cuts, pair: WorkerThreads) -> None:
    proxy = CuttingProxy(pair.places["server"], cuts)
    server = pair.start("server", Adder(times=8))
    client = pair.start("client-0", Answerer(5), {"server": proxy.address})
    assert sums(server.result(20)) == {"client-0": 8 * 15}
    client.result(20)
    assert proxy.connections > len(cuts)
    proxy.close()


@pytest.mark.slow
def test_a_half_open_connection_is_noticed(pair: WorkerThreads) -> None:
    """Nothing comes through any more, and nobody hangs up: silence breaks it, and patience ends."""
    proxy = CuttingProxy(pair.places["server"])
    server = pair.start("server", Adder(times=10**6))
    pair.start("client-0", Answerer(5), {"server": proxy.address})
    time.sleep(0.5)
    began = time.monotonic()
    proxy.frozen.set()
    done = server.result(20)
    assert time.monotonic() - began < 4
    assert done.gone["client-0"].startswith("no connection for 0.6 seconds")
    proxy.close()


def test_who_hangs_up_without_a_word_is_gone_after_a_while(pair: WorkerThreads) -> None:
    server = pair.start("server", Adder())
    stranger(pair.places["server"]).close()
    done = server.result(20)
    assert done.gone == {"client-0": "no connection for 0.6 seconds (it hung up)"}
    assert int(done.results["server"]["lost"]) == 1


def test_who_never_comes_is_gone(pair: WorkerThreads) -> None:
    limits = replace(QUICK, joining=0.5)
    done = pair.start("server", Adder(), limits=limits).result(20)
    assert done.gone == {"client-0": "no connection for 0.5 seconds"}


def test_who_cannot_be_called_is_gone(pair: WorkerThreads) -> None:
    pair.listeners["server"].close()
    limits = replace(QUICK, joining=0.3)
    with pytest.raises(ProtocolError, match=r"'server' is gone \(no connection for 0.3 seconds \(.*Connect call"):
        pair.start("client-0", Answerer(), limits=limits).result(20)


def stranger(address: tuple[str, int], index: int = 1, topology: WorkerTopology = PAIR) -> socket.socket:
    """A connection that has said hello as client-0, whose hands are not ours."""
    connection = socket.create_connection(address, timeout=5)
    connection.sendall(framed(Introduction(topology, index).hello(0)))
    connection.recv(4)  # the answer's length: it is let in
    return connection


def message(kind: str = "number", number: int = 1, sender: int = 1) -> bytes:
    return framed(encoded(kind, {"turn": 0, "is": torch.ones(3)}, number, sender, None, 1 << 20))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (struct.pack("<I", 100) + bytes(100), "payload: begins with"),
        (struct.pack("<I", 1 << 31), "a frame of 2147483648 bytes; 268435456 are allowed"),
        (message()[:-1] + b"\xff", "checksum is wrong"),
        (message(sender=0), "a message of worker 0 came on the link of worker 1"),
        (message(number=3), "message 3 came where 1 was due"),
        (framed(word(ACK, 9, 1)), "message 9 is acknowledged, and only "),
        (b"GET / HTTP/1.1\r\n\r\n", "a frame of 542393671 bytes"),
    ],
    ids=["no payload", "too long", "damaged", "of another", "ahead", "never sent", "not ours"],
)
def test_who_sends_what_is_no_message_is_gone_at_once(data: bytes, why: str, pair: WorkerThreads) -> None:
    server = pair.start("server", Adder(), limits=replace(QUICK, patience=5.0))
    began = time.monotonic()
    with stranger(pair.places["server"]) as connection:
        connection.sendall(data)
        done = server.result(20)
    assert time.monotonic() - began < 4
    assert done.gone["client-0"].startswith("it sent what is no message")
    assert why in done.gone["client-0"]


def test_what_comes_twice_is_handed_over_once(pair: WorkerThreads) -> None:
    server = pair.start("server", Adder(times=2))
    with stranger(pair.places["server"]) as connection:
        connection.sendall(message() * 3)
        time.sleep(0.3)
        connection.sendall(framed(encoded("number", {"turn": 1, "is": torch.ones(3)}, 2, 1, None, 1 << 20)))
        assert sums(server.result(20)) == {"client-0": 6}


def test_unknown_names_and_wrong_bodies_are_refused_and_the_worker_goes_on(pair: WorkerThreads) -> None:
    server = pair.start("server", Adder(times=1))
    with stranger(pair.places["server"]) as connection:
        connection.sendall(message("numbr", 1))
        connection.sendall(framed(encoded("number", {"turn": 0}, 2, 1, None, 1 << 20)))
        connection.sendall(message("number", 3))
        done = server.result(20)
    assert sums(done) == {"client-0": 3}
    assert [(x.kind, x.why) for x in done.refused] == [
        ("numbr", "it has no handler of this name. Did you mean 'number'?"),
        ("number", "is is missing"),
    ]


@pytest.mark.parametrize("first", [b"", b"\0\0\0\0", struct.pack("<I", 2000), b"\x10\0\0\0" + bytes(16)], ids=repr)
def test_strangers_are_turned_away_and_the_run_goes_on(first: bytes, pair: WorkerThreads) -> None:
    with socket.create_connection(pair.places["server"], timeout=5) as connection:
        server = pair.start("server", Adder())
        connection.sendall(first)
        pair.start("client-0", Answerer(2))
        assert sums(server.result(20)) == {"client-0": 12}
        assert connection.recv(1) == b""


@pytest.mark.parametrize(
    ("index", "topology", "code"),
    [(0, PAIR, 2), (1, STAR, 1)],
    ids=["nobody who should call", "another topology"],
)
def test_those_who_do_not_belong_are_told_why(index, topology, code, pair: WorkerThreads) -> None:
    server = pair.start("server", Adder(), limits=replace(QUICK, joining=1.0))
    with socket.create_connection(pair.places["server"], timeout=5) as connection:
        connection.sendall(framed(Introduction(topology, index).hello(0)))
        (answer,) = FrameReader(1000).feed(connection.recv(1000))
        assert (decode(answer).kind, decode(answer).round) == ("atoll.refused", code)
        assert connection.recv(1) == b""
    server.result(20)


@pytest.mark.slow
def test_a_worker_that_was_started_again_is_not_taken_for_the_one_that_was_lost(pair: WorkerThreads) -> None:
    server = pair.start("server", Adder(times=2), limits=replace(QUICK, patience=2.0))
    stranger(pair.places["server"]).close()
    with pytest.raises(ProtocolError, match=r"'server' is gone \(refused: it knows that worker as another process"):
        pair.start("client-0", Answerer()).result(20)
    assert server.result(20).gone.keys() == {"client-0"}


def test_a_worker_that_fails_tells_its_neighbours(pair: WorkerThreads) -> None:
    server, client = pair.start("server", Adder()), pair.start("client-0", Failing())
    with pytest.raises(ValueError, match="out of paper"):
        client.result(20)
    assert server.result(20).gone == {"client-0": "it failed"}


def test_a_worker_that_does_not_end_in_time_says_so(pair: WorkerThreads) -> None:
    server = pair.start("server", Adder(), seconds=0.7)
    pair.start("client-0", Silent(), seconds=1.5)
    with pytest.raises(ProtocolError, match=r"server: did not end within 0.7 seconds. Still there: client-0"):
        server.result(20)


def test_a_worker_with_nobody_left_says_so(pair: WorkerThreads) -> None:
    class Deaf(Silent):
        """Hears that all have left, and waits."""

    class Ends(Worker):
        """At once."""

        def begin(self, post: Post) -> None:
            post.end()

        def handlers(self) -> dict[str, Handler]:
            return {}

    server = pair.start("server", Deaf())
    pair.start("client-0", Ends()).result(20)
    with pytest.raises(ProtocolError, match=r"server: nothing more will happen. Still there: nobody"):
        server.result(20)


def test_a_timer_rings_where_a_message_does_not_come(pair: WorkerThreads) -> None:
    class Waits(Silent):
        """For a quarter of a second."""

        def begin(self, post: Post) -> None:
            post.timer("enough", 0.25)

        def timers(self):
            return {"enough": lambda post: post.end({"rung": True})}

    server = pair.start("server", Waits())
    pair.start("client-0", Waits())
    assert 0.2 < server.result(20).seconds < 3


@pytest.mark.slow
def test_a_slow_worker_keeps_its_connections_and_its_memory(pair: WorkerThreads) -> None:
    """Heartbeats go on while a handler works, and a sender waits when the inbox is full."""

    class Floods(Worker):
        def begin(self, post: Post) -> None:
            for i in range(40):
                post.send("server", "block", {"i": i, "w": torch.zeros(25_000)})
            post.end()

        def handlers(self) -> dict[str, Handler]:
            return {}

    class Slow(Silent):
        def __init__(self) -> None:
            self.blocks: list[int] = []

        def handlers(self) -> dict[str, Handler]:
            return {"block": self.on_block}

        def on_block(self, post: Post, mail: Mail) -> None:
            if not self.blocks:
                time.sleep(1.0)  # longer than silence is borne
            self.blocks.append(int(mail.body["i"]))
            if len(self.blocks) == 40:
                post.end()

    worker = Slow()
    server = pair.start("server", worker, limits=replace(QUICK, inbox_bytes=300_000))
    client = pair.start("client-0", Floods(), limits=replace(QUICK, patience=4.0))
    assert not server.result(20).gone
    assert not client.result(20).gone
    assert worker.blocks == list(range(40))


def test_bytes_beyond_this_machine_are_refused_before_anything_is_opened() -> None:
    addresses = AddressList({"server": ("10.1.2.3", 7000)})
    with pytest.raises(ConfigError, match="there is no TLS"):
        run_worker("client-0", Answerer(), PAIR, addresses)


def test_a_port_that_is_taken_is_named(pair: WorkerThreads) -> None:
    with pytest.raises(ConfigError, match="server: cannot listen at"):
        run_worker("server", Adder(), PAIR, AddressList(pair.places), limits=QUICK)


def test_limits_that_cannot_hold_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"limits.patience: must be above 0"):
        ConnectionLimits(patience=0)
    with pytest.raises(ConfigError, match=r"limits.silence: 1 seconds, but heartbeats come every 2"):
        ConnectionLimits(silence=1, heartbeat=2)
    with pytest.raises(ConfigError, match="seconds: must be above 0 and finite"):
        run_worker("client-0", Answerer(), PAIR, AddressList({"server": ("127.0.0.1", 1)}), seconds=0)


def test_ctrl_c_ends_a_worker_which_says_so(pair: WorkerThreads) -> None:
    class Waiting(Silent):
        """Ends when the other is gone."""

        def gone(self, post: Post, name: str, why: str) -> None:
            post.end()

    roomy = replace(QUICK, patience=5.0, silence=5.0, handshake=5.0)  # a busy machine may stand still for a while
    server = pair.start("server", Waiting(), limits=roomy)
    timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
    timer.start()
    began = time.monotonic()
    try:
        run_worker("client-0", Silent(), PAIR, AddressList(pair.places), limits=roomy, seconds=30)
    except KeyboardInterrupt:
        seconds = time.monotonic() - began
    except ProtocolError as e:
        timer.cancel()
        pytest.fail(f"before Ctrl-C: {e} The server: {server.exception(20) or server.result(20)!r}")
    timer.join()
    assert seconds < 5
    assert server.result(20).gone == {"client-0": "it was interrupted"}
