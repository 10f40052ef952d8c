"""One process, virtual time: the same run to the last bit, the clock's seconds, and every fault as the page says."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.clock import Clock, ClockTable, Devices
from atoll.errors import ConfigError, ProtocolError
from atoll.messages import Ended, Faults, Mail, Post, VirtualNetwork, Worker, WorkerTopology, run
from atoll.messages.worker import Handler
from tests.support.message_workers import Adder, Answerer, Silent, adder_or_answerer

STAR = WorkerTopology.star("server", ["client-0", "client-1", "client-2"])
PAIR = WorkerTopology.complete(["a", "b"])
SUMS = {"client-0": 6, "client-1": 12, "client-2": 18}


def sums(done: Ended) -> dict[str, int]:
    return {name: int(x) for name, x in done.results["server"]["sums"].items()}


def star(faults: Faults | None = None, **options) -> Ended:
    return run({name: adder_or_answerer(name) for name in STAR.names}, STAR, faults=faults or Faults(), **options)


@dataclass
class Talker(Worker):
    """Sends numbered messages when it begins, and ends."""

    count: int

    def begin(self, post: Post) -> None:
        for i in range(self.count):
            post.send_all("x", {"i": i})
        post.end()

    def handlers(self) -> dict[str, Handler]:
        return {}


@dataclass
class Listener(Worker):
    """Writes down what comes, until a timer runs out."""

    seconds: float = 10.0
    heard: list[int] = field(default_factory=list)

    def begin(self, post: Post) -> None:
        post.timer("enough", self.seconds)

    def handlers(self) -> dict[str, Handler]:
        return {"x": self.on_x}

    def timers(self) -> dict[str, Callable[[Post], None]]:
        return {"enough": lambda post: post.end()}

    def gone(self, post: Post, name: str, why: str) -> None:
        self.heard.append(-1)

    def on_x(self, post: Post, mail: Mail) -> None:
        self.heard.append(int(mail.body["i"]))


def heard(faults: Faults, count: int = 5, **options) -> tuple[list[int], Ended]:
    listener = Listener()
    return listener.heard, run({"a": Talker(count), "b": listener}, PAIR, faults=faults, **options)


def fates(done: Ended) -> list[str]:
    return [line.fate for line in done.log]


def test_a_run_is_the_same_twice_with_every_fault() -> None:
    faults = Faults(duplicate=0.3, delay=0.3, reorder=0.3, seed=5)
    network = VirtualNetwork(Devices.of(ClockTable(seconds_per_step=0, latency_ms=20.0), 0, 3), {"client-1": 1})
    first, second = (star(faults, network=network) for _ in range(2))
    assert first.log == second.log
    assert sums(first) == sums(second) == SUMS
    assert {"delivered", "duplicate"} <= set(fates(first))
    assert star(Faults(duplicate=0.3, delay=0.3, reorder=0.3, seed=6), network=network).log != first.log


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.floats(0, 1), st.floats(0, 1))
def test_what_comes_twice_or_late_changes_no_result(seed: int, duplicate: float, delay: float) -> None:
    """Nothing is lost here, so everything is handed over once, whatever the draw."""
    done = star(Faults(duplicate=duplicate, delay=delay, reorder=delay, seed=seed))
    assert sums(done) == SUMS
    kinds = sorted((d.sender, d.receiver, d.number) for d in done.log if d.fate == "delivered")
    assert len(set(kinds)) == len(kinds) == 15


def test_without_faults_messages_of_a_link_come_in_order() -> None:
    numbers, done = heard(Faults())
    assert numbers == [0, 1, 2, 3, 4]
    assert fates(done) == ["delivered"] * 5
    assert done.bytes == sum(line.bytes for line in done.log)


def test_what_is_dropped_never_arrives_and_the_rest_does() -> None:
    numbers, done = heard(Faults(at={("a", "b", 2): "drop"}))
    assert numbers == [0, 2, 3, 4]
    assert [line.number for line in done.log if line.fate == "dropped"] == [2]


def test_what_comes_twice_is_handed_over_once() -> None:
    numbers, done = heard(Faults(at={("a", "b", 3): "duplicate"}))
    assert numbers == [0, 1, 2, 3, 4]
    assert fates(done).count("duplicate") == 1
    assert done.bytes == 5 * done.log[0].bytes


def test_what_is_late_makes_all_behind_it_late() -> None:
    numbers, done = heard(Faults(at={("a", "b", 2): "delay"}, late_seconds=3.0))
    assert numbers == [0, 1, 2, 3, 4]
    assert [line.arrived for line in done.log] == [0, 3, 3, 3, 3]


def test_what_is_reordered_is_overtaken() -> None:
    numbers, done = heard(Faults(at={("a", "b", 2): "reorder"}, late_seconds=3.0))
    assert numbers == [0, 2, 3, 4, 1]
    assert max(line.arrived for line in done.log) == 3


def test_what_comes_after_the_end_is_not_read() -> None:
    _, done = heard(Faults(at={("a", "b", 5): "reorder"}, late_seconds=30.0))
    assert fates(done) == ["delivered"] * 4 + ["unread"]


def test_a_worker_that_dies_is_gone_for_its_neighbours_after_a_while() -> None:
    network = VirtualNetwork(Devices.of(ClockTable(seconds_per_step=0, latency_ms=1000.0), 0, 1), {"client-1": 0})
    done = star(Faults(deaths={"client-1": 2.5}, detected_after=4.0), network=network)
    assert sums(done) == {"client-0": 6, "client-1": 6, "client-2": 18}  # its second answer never came
    assert int(done.results["server"]["lost"]) == 1
    assert done.gone == {"client-1": "died at 2.5 seconds"}
    assert done.seconds == 6.5


def test_what_a_worker_sent_before_it_died_still_arrives() -> None:
    class Last(Worker):
        """Sends, and would go on for ever."""

        def begin(self, post: Post) -> None:
            post.send("b", "x", {"i": 7})

        def handlers(self) -> dict[str, Handler]:
            return {}

    listener = Listener()
    faults = Faults(at={("a", "b", 1): "delay"}, late_seconds=8.0, deaths={"a": 1.0}, detected_after=2.0)
    run({"a": Last(), "b": listener}, PAIR, faults=faults)
    assert listener.heard == [7, -1]  # and it is gone only after that


def test_work_takes_a_device_its_time_and_is_lost_with_it() -> None:
    network = VirtualNetwork(Devices.of(ClockTable(seconds_per_step=0, slowness=3.0), 0, 1), {"client-0": 0})
    topology = WorkerTopology.star("server", ["client-0"])
    workers = {"server": Adder(times=2), "client-0": Answerer(seconds=2.0)}
    assert run(workers, topology, network=network).seconds == 12.0
    workers = {"server": Adder(times=2), "client-0": Answerer(seconds=2.0)}
    done = run(workers, topology, network=network, faults=Faults(deaths={"client-0": 7.0}))
    assert {name: int(x) for name, x in done.results["server"]["sums"].items()} == {"client-0": 3}


def test_a_worker_does_one_thing_at_a_time() -> None:
    @dataclass
    class Slow(Worker):
        left: int = 3

        def handlers(self) -> dict[str, Handler]:
            return {"x": self.on_x}

        def on_x(self, post: Post, mail: Mail) -> None:
            post.spend(1.0)
            self.left -= 1
            if not self.left:
                post.end()

    assert run({"a": Talker(3), "b": Slow()}, PAIR).seconds == 3.0


@given(st.integers(1, 200_000), st.integers(0, 50))
@settings(max_examples=25)
def test_a_message_to_and_from_an_ideal_server_takes_the_seconds_of_the_clock(size: int, id: int) -> None:
    table = ClockTable(seconds_per_step=0.0, up_mbps=3.0, down_mbps=11.0, latency_ms=40.0, loss=0.01)
    clock = Clock.of(table, seed=1, population=51)
    times = VirtualNetwork(clock.devices, {"b": id}).among(["a", "b"])
    timeline = clock.timeline(0, np.array([id]), np.array([0]), size, 2 * size, 0.0)
    received = times.departure("a", "b", size, 0.0, 0.0).arrives
    arrived = times.departure("b", "a", 2 * size, received, 0.0).arrives
    assert received == pytest.approx(float(timeline.received[0]), rel=1e-12)
    assert arrived == pytest.approx(float(timeline.arrived[0]), rel=1e-12)


def test_messages_of_one_sender_share_its_uplink() -> None:
    devices = Devices.of(ClockTable(seconds_per_step=0, up_mbps=8.0), 0, 1)  # a million bytes in a second
    times = VirtualNetwork(devices, {"a": 0}, slow_start=False).among(["a", "b"])
    first = times.departure("a", "b", 1_000_000, 0.0, 0.0)
    second = times.departure("a", "b", 1_000_000, 0.0, first.free)
    assert first.free == pytest.approx(1.0)
    assert second.arrives - first.arrives == pytest.approx(1.0)


def test_a_timer_that_is_set_anew_or_called_off_does_not_ring() -> None:
    rung: list[str] = []

    class Timed(Worker):
        """Sets, sets anew, calls off."""

        def begin(self, post: Post) -> None:
            post.timer("a", 1.0)
            post.timer("b", 2.0)
            post.timer("c", 5.0)

        def handlers(self) -> dict[str, Handler]:
            return {}

        def timers(self) -> dict[str, Callable[[Post], None]]:
            return {"a": self.on_a, "b": lambda post: rung.append("b"), "c": lambda post: post.end()}

        def on_a(self, post: Post) -> None:
            rung.append("a")
            post.cancel("b")
            post.timer("c", 1.0)

    done = run({"a": Timed()}, WorkerTopology({"a": ()}))
    assert rung == ["a"]
    assert done.seconds == 2.0


def test_workers_that_never_end_are_stopped() -> None:
    class Chatty(Worker):
        """Answers everything, for ever."""

        def begin(self, post: Post) -> None:
            post.send_all("x")

        def handlers(self) -> dict[str, Handler]:
            return {"x": lambda post, mail: post.send(mail.sender, "x")}

    with pytest.raises(ProtocolError, match="not at their end after 1,000 events"):
        run({"a": Chatty(), "b": Chatty()}, PAIR, most_events=1000)
    with pytest.raises(ProtocolError, match="not at their end after 5 seconds"):
        run({"a": Talker(1), "b": Listener()}, PAIR, most_seconds=5.0)


def test_a_lost_message_that_all_wait_for_is_named() -> None:
    with pytest.raises(ProtocolError, match="'ask' of server to client-1 was dropped"):
        star(Faults(at={("server", "client-1", 1): "drop"}))
    with pytest.raises(ProtocolError, match=r"a: .b. is gone \(died at 1 seconds\)"):
        run({"a": Answerer(), "b": Silent()}, PAIR, faults=Faults(deaths={"b": 1.0}))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"drop": 1.5}, "faults.drop: is a probability"),
        ({"late_seconds": -1.0}, "faults.late_seconds: -1.0 seconds"),
        ({"deaths": {"client-0": float("inf")}}, "faults.deaths.client-0: inf seconds"),
        ({"at": {("server", "client-0", 1): "lose"}}, "'lose' is not known. Known: drop, duplicate, delay, reorder"),
        ({"deaths": {"client-9": 1.0}}, "no worker 'client-9'"),
        ({"at": {("server", "clint-0", 1): "drop"}}, "Did you mean 'client-0'"),
    ],
)
def test_faults_that_cannot_be_are_refused(options, words) -> None:
    with pytest.raises(ConfigError, match=words):
        star(Faults(**options))
