"""The connections of one worker: plain asyncio TCP in a thread of its own, so that heartbeats go on while it works.

Between two neighbours there is one connection at a time; the later in the topology calls the earlier. Where it breaks,
it is made again, and each side sends what the other does not have: numbers see to it that nothing is handed over
twice. Who is without a connection for `patience` seconds is given up, as is at once who sends what is no message.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, NamedTuple, TypeAlias

from atoll.errors import ConfigError, ProtocolError, WireError
from atoll.messages.addresses import AddressList, callers
from atoll.messages.frames import LENGTH, MOST_BYTES, FrameReader, framed
from atoll.messages.handshake import (
    ACK,
    BYE,
    GIVEN_UP,
    HELLO_BYTES,
    LAST_WORDS,
    NOT_EXPECTED,
    OTHER_CERTIFICATE,
    REFUSED,
    RESTARTED,
    Hello,
    Introduction,
    RefusedConnectionError,
    checked,
    word,
)
from atoll.messages.link_numbers import LinkNumbers
from atoll.messages.mutual_tls import MutualTls, check_certificate
from atoll.messages.post import Parcel
from atoll.messages.worker import Mail
from atoll.messages.worker_topology import WorkerTopology
from atoll.wire import Payload, decode

_STRANGERS = 64  # connections at a time that have not said who they are
_PIECE = 1 << 18
_CLOSING = 50  # hundredths of a second
_RETRY = 0.05  # seconds between two calls, at first


@dataclass(frozen=True)
class ConnectionLimits:
    """Bounds in seconds and bytes."""

    joining: float = 30.0  # for the first connection
    patience: float = 5.0  # without a connection, before a neighbour is given up; and for a goodbye
    heartbeat: float = 1.0  # after so long without a word one says something
    silence: float = 10.0  # a connection on which nothing came for so long is broken
    handshake: float = 5.0
    most_bytes: int = MOST_BYTES  # of one message
    inbox_bytes: int = 1 << 28  # waiting for the worker: no more is read beyond that

    def __post_init__(self) -> None:
        wrong = [name for name, x in vars(self).items() if not 0 < x < float("inf")]
        if wrong:
            raise ConfigError(f"limits.{wrong[0]}: must be above 0 and finite (got {vars(self)[wrong[0]]}).")
        if self.silence <= self.heartbeat:
            raise ConfigError(
                f"limits.silence: {self.silence:g} seconds, but heartbeats come every {self.heartbeat:g}. "
                "Allow for a few."
            )


USUAL_LIMITS = ConnectionLimits()


class Arrived(NamedTuple):
    """A message, and the bytes that it took."""

    mail: Mail
    bytes: int


class Lost(NamedTuple):
    """A neighbour that was given up."""

    name: str
    why: str


class Left(NamedTuple):
    """A neighbour that has ended."""

    name: str


Incoming: TypeAlias = Arrived | Lost | Left
_Socket: TypeAlias = Any  # asyncio.trsock.TransportSocket, which has no public name
_Stream: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter, Hello]


class Connections:
    """All links of one worker. What they bring is in `inbox`; the methods may be called from the worker's thread."""

    def __init__(
        self,
        name: str,
        topology: WorkerTopology,
        addresses: AddressList,
        tls: MutualTls | None = None,
        limits: ConnectionLimits = USUAL_LIMITS,
        listener: socket.socket | None = None,
    ) -> None:
        addresses.check(topology, tls is not None)
        self.name, self.topology, self.limits, self.addresses = name, topology, limits, addresses
        self.calling = tls.calling() if tls else None
        self.listening = tls.listening() if tls else None
        self.introduction = Introduction(topology, topology.index(name))
        self.inbox: SimpleQueue[Incoming] = SimpleQueue()
        self.waiting_bytes = 0
        self.strangers = 0
        self.writers: list[tuple[asyncio.StreamWriter, _Socket]] = []  # all that may be open
        self.links: Mapping[str, _Link] = {}
        self.listener = listener or self._listener()
        self.thread = Thread(target=lambda: asyncio.run(self._attend()), name=f"atoll-{name}", daemon=True)
        self.ready = Event()

    def start(self) -> None:
        self.thread.start()
        self.ready.wait()

    def send(self, parcel: Parcel) -> None:
        """On its way as soon as there is a connection; nowhere, if the neighbour has ended or is given up."""
        link = self.links[parcel.receiver]
        self.loop.call_soon_threadsafe(link.post, parcel.number, framed(parcel.data))

    def taken(self, size: int) -> None:
        """The worker has taken a message of so many bytes from the inbox."""
        self.loop.call_soon_threadsafe(self._took, size)

    def finish(self, last_word: str = BYE) -> None:
        """Say goodbye, wait until neighbours have everything or `patience` is over, and hang up."""
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.last_word.set_result, last_word)
            self.thread.join(self.limits.patience + 2.0)

    def _took(self, size: int) -> None:
        self.waiting_bytes -= size

    def _listener(self) -> socket.socket | None:
        if not callers(self.topology, self.name):
            return None
        host, port = self.addresses.places[self.name]
        try:
            return socket.create_server(
                (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, reuse_port=False
            )
        except OSError as e:
            raise ConfigError(
                f"{self.name}: cannot listen at {host}:{port} ({e.strerror or e}). Is it free, and here?"
            ) from e

    async def _attend(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.last_word: asyncio.Future[str] = self.loop.create_future()
        self.links = {other: _Link(self, other) for other in self.topology.neighbours(self.name)}
        server = None
        if self.listener is not None:
            server = await asyncio.start_server(
                self._called, sock=self.listener, ssl=self.listening,
                ssl_handshake_timeout=self.limits.handshake if self.listening else None,
            )  # fmt: skip
        tasks = [asyncio.create_task(link.attend()) for link in self.links.values()]
        self.ready.set()
        last_word = await self.last_word
        for link in self.links.values():
            link.post(link.numbers.sent + 1, framed(word(last_word, link.numbers.sent + 1, self.introduction.index)))
        settled = [asyncio.create_task(link.settled.wait()) for link in self.links.values()]
        if settled:
            await asyncio.wait(settled, timeout=self.limits.patience)
        for task in [*tasks, *settled]:
            task.cancel()
        await asyncio.gather(*tasks, *settled, return_exceptions=True)
        if server is not None:
            server.close()
        await asyncio.gather(*(_close(*pair) for pair in self.writers))

    def opened(self, writer: asyncio.StreamWriter) -> None:
        """One more connection, which is closed in the end whatever becomes of it."""
        self.writers = [(w, connection) for w, connection in self.writers if connection.fileno() >= 0]
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else an answer waits 40 ms for company
        self.writers.append((writer, connection))

    async def _called(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Somebody called: let in if it is a neighbour that should."""
        self.opened(writer)
        if self.strangers >= _STRANGERS:
            return writer.close()
        self.strangers += 1
        try:
            async with asyncio.timeout(self.limits.handshake):
                await self._let_in(reader, writer)
        except RefusedConnectionError as e:
            writer.write(framed(word(REFUSED, e.code, self.introduction.index)))
            writer.close()
        except (OSError, EOFError, TimeoutError, WireError, ProtocolError):
            writer.close()
        except BaseException:
            writer.close()
            raise
        finally:
            self.strangers -= 1
        return None

    async def _let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = self.introduction.read(await read_hello(reader))
        expected = {self.topology.index(name): name for name in callers(self.topology, self.name)}
        if hello.sender not in expected:
            raise RefusedConnectionError(NOT_EXPECTED)
        link = self.links[expected[hello.sender]]
        link.check(hello, writer)
        await link.hang_up()  # a connection that this side took for alive
        writer.write(framed(self.introduction.hello(link.numbers.received)))
        await writer.drain()
        link.calls.put_nowait((reader, writer, hello))


class _Link:
    """One neighbour: its numbers, and the connection that there is or will be."""

    def __init__(self, own: Connections, name: str) -> None:
        self.own, self.name, self.index = own, name, own.topology.index(name)
        self.limits = own.limits
        self.numbers = LinkNumbers()
        self.incarnation: int | None = None
        self.over = ""  # why nothing more comes: it has ended, or is given up
        self.settled = asyncio.Event()  # it has all that was sent, or will never have it
        self.wake = asyncio.Event()
        self.ack_due = False
        self.calls: asyncio.Queue[_Stream] = asyncio.Queue()
        self.session: asyncio.Task[None] | None = None
        self.last_error = ""

    def post(self, number: int, frame: bytes) -> None:
        if self.over:
            return
        self.numbers.keep(number, frame)
        self.settled.clear()
        self.wake.set()

    async def attend(self) -> None:
        """Until there will be no more connections, or until this is cancelled: nothing is left open."""
        try:
            await self._attend()
        except Exception as e:  # a mistake of ours must not look like a neighbour that is silent
            self._finish(Lost(self.name, f"{type(e).__name__}: {e}"))
        finally:
            await self.hang_up()

    async def _attend(self) -> None:
        """Connections, one after the other."""
        seconds = self.limits.joining
        while not self.over:
            try:
                async with asyncio.timeout(seconds):
                    stream = await self._connected()
            except TimeoutError:
                last = f" ({self.last_error})" if self.last_error else ""
                return self._finish(Lost(self.name, f"no connection for {seconds:g} seconds{last}"))
            except ProtocolError as e:
                return self._finish(Lost(self.name, str(e)))
            self.session = asyncio.create_task(self._talk(*stream))
            await asyncio.wait([self.session])
            error = asyncio.CancelledError() if self.session.cancelled() else self.session.exception()
            if isinstance(error, WireError | ProtocolError):
                return self._finish(Lost(self.name, f"it sent what is no message: {error}"))
            self.last_error = "it hung up" if isinstance(error, EOFError | ConnectionError) else str(error or "")
            seconds = self.limits.patience
        return None

    async def hang_up(self) -> None:
        if self.session is not None:
            self.session.cancel()
            await asyncio.gather(self.session, return_exceptions=True)

    def check(self, hello: Hello, writer: asyncio.StreamWriter) -> None:
        """Is this the worker, and the process, that it should be?"""
        if hello.sender != self.index:
            raise ProtocolError(f"{self.name} is expected there, and worker {hello.sender} answers")
        if self.over:
            raise RefusedConnectionError(GIVEN_UP)
        if writer.get_extra_info("ssl_object") is not None:
            try:
                check_certificate(writer.get_extra_info("peercert"), self.name)
            except ProtocolError as e:
                self.last_error = str(e)
                raise RefusedConnectionError(OTHER_CERTIFICATE) from e
        if self.incarnation not in (None, hello.incarnation):
            raise RefusedConnectionError(RESTARTED)
        self.incarnation = hello.incarnation

    async def _connected(self) -> _Stream:
        if self.index > self.own.introduction.index:
            return await self.calls.get()
        pause = _RETRY
        while True:
            try:
                async with asyncio.timeout(self.limits.handshake):
                    return await self._call()
            except RefusedConnectionError:
                raise
            except ssl.SSLError as e:
                raise ProtocolError(f"TLS: {e.reason or e}") from e
            except (OSError, EOFError, TimeoutError, WireError, ProtocolError) as e:
                self.last_error = str(e) or type(e).__name__
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)

    async def _call(self) -> _Stream:
        host, port = self.own.addresses.places[self.name]
        reader, writer = await asyncio.open_connection(host, port, ssl=self.own.calling)
        self.own.opened(writer)
        try:
            writer.write(framed(self.own.introduction.hello(self.numbers.received)))
            await writer.drain()
            hello = self.own.introduction.read(await read_hello(reader))
            self.check(hello, writer)
        except BaseException:
            writer.close()
            raise
        return reader, writer, hello

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: Hello) -> None:
        """One connection, until it breaks or the neighbour has ended."""
        tasks = []
        try:
            self._acknowledged(hello.received)
            tasks = [asyncio.create_task(self._read(reader)), asyncio.create_task(self._write(writer, hello.received))]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        frames = FrameReader(self.limits.most_bytes)
        while True:
            async with asyncio.timeout(self.limits.silence):
                data = await reader.read(_PIECE)
            if not data:
                raise EOFError("it hung up")
            for payload in frames.feed(data):
                self._take(checked(decode(payload, self.limits.most_bytes), self.index), len(payload))
            while self.own.waiting_bytes > self.limits.inbox_bytes:  # TCP makes the sender wait
                await asyncio.sleep(0.005)

    def _take(self, payload: Payload, size: int) -> None:
        if payload.kind == ACK:
            return self._acknowledged(payload.round)
        new = self.numbers.take(payload.round)
        self.ack_due = True
        self.wake.set()
        if new and payload.kind == BYE:
            return self._finish(Left(self.name))
        if new and payload.kind in LAST_WORDS:
            return self._finish(Lost(self.name, LAST_WORDS[payload.kind]))
        if new and not self.over:
            self.own.waiting_bytes += size
            self.own.inbox.put(Arrived(Mail(self.name, payload.kind, payload.tree), size))
        return None

    async def _write(self, writer: asyncio.StreamWriter, received: int) -> None:
        while True:
            self.wake.clear()
            for number, frame in self.numbers.after(received):
                writer.write(frame)
                received = number
            if self.ack_due:
                self.ack_due = False
                writer.write(framed(word(ACK, self.numbers.received, self.own.introduction.index)))
            await writer.drain()
            if self.over:
                return
            try:
                async with asyncio.timeout(self.limits.heartbeat):
                    await self.wake.wait()
            except TimeoutError:
                self.ack_due = True

    def _acknowledged(self, number: int) -> None:
        self.numbers.acknowledge(number)
        if not self.numbers.kept:
            self.settled.set()

    def _finish(self, heard: Lost | Left) -> None:
        """Nothing more comes from it, and nothing more goes to it."""
        if not self.over:
            self.over = "ended" if isinstance(heard, Left) else "gone"
            self.numbers.forget()
            self.settled.set()
            self.wake.set()
            self.own.inbox.put(heard)


async def _close(writer: asyncio.StreamWriter, connection: _Socket) -> None:
    """What was written is still sent, if that takes no time; then the socket is given back."""
    writer.close()
    for _ in range(_CLOSING):
        await asyncio.sleep(0)
        if connection.fileno() < 0:
            return
        await asyncio.sleep(0.01)
    writer.transport.abort()
    await asyncio.sleep(0)  # the socket is closed in the loop's next turn


async def read_hello(reader: asyncio.StreamReader) -> bytes:
    """One frame, of whoever it may be."""
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if length > HELLO_BYTES:
        raise WireError(f"a first frame of {length} bytes; a hello has fewer than {HELLO_BYTES}.")
    return await reader.readexactly(length)
