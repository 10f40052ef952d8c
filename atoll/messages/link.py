"""One neighbour of a worker over TCP: the connection that there is or will be, and what goes through it once."""

from __future__ import annotations

import asyncio
import ssl
from queue import SimpleQueue
from typing import NamedTuple, Protocol, TypeAlias

from atoll.errors import ProtocolError, WireError
from atoll.messages.addresses import AddressList
from atoll.messages.connection_limits import ConnectionLimits
from atoll.messages.frames import LENGTH, FrameReader, framed
from atoll.messages.handshake import (
    ACK,
    BYE,
    GIVEN_UP,
    HELLO_BYTES,
    LAST_WORDS,
    OTHER_CERTIFICATE,
    RESTARTED,
    Hello,
    Introduction,
    RefusedConnectionError,
    checked,
    word,
)
from atoll.messages.link_numbers import LinkNumbers
from atoll.messages.mutual_tls import check_certificate
from atoll.messages.worker import Mail
from atoll.messages.worker_topology import WorkerTopology
from atoll.wire import Payload, decode

_PIECE = 1 << 18
_RETRY = 0.05  # seconds between two calls, at first


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
Stream: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter, Hello]


class LinkOwner(Protocol):
    """What links of one worker share."""

    topology: WorkerTopology
    addresses: AddressList
    limits: ConnectionLimits
    introduction: Introduction
    calling: ssl.SSLContext | None
    inbox: SimpleQueue[Incoming]
    waiting_bytes: int  # in the inbox

    def opened(self, writer: asyncio.StreamWriter) -> None:
        """Somebody who closes it in the end must know of every connection."""


class Link:
    """One neighbour: its numbers, and the connection that there is or will be."""

    def __init__(self, own: LinkOwner, name: str) -> None:
        self.own, self.name, self.index = own, name, own.topology.index(name)
        self.limits = own.limits
        self.numbers = LinkNumbers()
        self.incarnation: int | None = None
        self.over = ""  # why nothing more comes: it has ended, or is given up
        self.settled = asyncio.Event()  # it has all that was sent, or will never have it
        self.wake = asyncio.Event()
        self.ack_due = False
        self.calls: asyncio.Queue[Stream] = asyncio.Queue()
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

    async def _connected(self) -> Stream:
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

    async def _call(self) -> Stream:
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


async def read_hello(reader: asyncio.StreamReader) -> bytes:
    """One frame, of whoever it may be."""
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if length > HELLO_BYTES:
        raise WireError(f"a first frame of {length} bytes; a hello has fewer than {HELLO_BYTES}.")
    return await reader.readexactly(length)
