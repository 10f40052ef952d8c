"""The connections of one worker: plain asyncio TCP in a thread of its own, so that heartbeats go on while it works.

Between two neighbours there is one connection at a time; the later in the topology calls the earlier. Where it breaks,
it is made again, and each side sends what the other does not have: numbers see to it that nothing is handed over
twice. Who is without a connection for `patience` seconds is given up, as is at once who sends what is no message.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, TypeAlias

from atoll.errors import ConfigError, ProtocolError, WireError
from atoll.messages.addresses import AddressList, callers
from atoll.messages.connection_limits import USUAL_LIMITS, ConnectionLimits
from atoll.messages.frames import framed
from atoll.messages.handshake import BYE, NOT_EXPECTED, REFUSED, Introduction, RefusedConnectionError, word
from atoll.messages.link import Incoming, Link, read_hello
from atoll.messages.mutual_tls import MutualTls
from atoll.messages.post import Parcel
from atoll.messages.worker_topology import WorkerTopology

_STRANGERS = 64  # connections at a time that have not said who they are
_CLOSING = 50  # hundredths of a second
_Socket: TypeAlias = Any  # asyncio.trsock.TransportSocket, which has no public name


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
        self.links: Mapping[str, Link] = {}
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
            self.ready.wait()  # one that was interrupted at its start
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
        self.links = {other: Link(self, other) for other in self.topology.neighbours(self.name)}
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
