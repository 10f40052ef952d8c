"""A protocol between processes: one is the server, the others are clients, and TCP is between them.

Frames are a u32 length (little-endian) and a payload of `atoll.wire`: kind, sender, and the step as its round. A client
begins with "hello"; every message of the server is answered by one frame, "nothing" where the client has no reply; the
last is "end". Who does not answer in time, hangs up, or sends what is no answer to this step, is gone: a dropout.
So is whose answer has not the shape of most of the others' (`Protocol.faults`). What is wrong with an answer beyond its
shape is for the protocol, and may end the round.

TCP here is neither encrypted nor authenticated: whoever can connect can say that it is client 3. What must stay secret
is sealed by the protocol itself; put TLS with client certificates around it where clients must be known.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from atoll.core import Message, Protocol
from atoll.errors import ProtocolError, WireError
from atoll.tree import Tree
from atoll.wire import SERVER, Payload, decode, encode

MOST_BYTES = 1 << 30  # of one frame, unless said otherwise
_HELLO_BYTES = 1 << 10  # the first frame, of whoever it may be
_LENGTH = struct.Struct("<I")
_HELLO, _NOTHING, _END = "hello", "nothing", "end"
_LOST = (OSError, EOFError, WireError, ProtocolError, TimeoutError)


@dataclass
class Served:
    """What a server ends with: its result, who was lost and why, and the bytes of frames by client."""

    result: Tree
    lost: dict[int, str] = field(default_factory=dict)
    bytes_down: dict[int, int] = field(default_factory=dict)
    bytes_up: dict[int, int] = field(default_factory=dict)


def serve(
    protocol: Protocol,
    ids: Sequence[int],
    key: Tensor,
    listener: socket.socket,
    *,
    seconds: float = 30.0,
    most_bytes: int = MOST_BYTES,
) -> Served:
    """Run the server's side with whoever of `ids` connects within `seconds`, and answers each step within `seconds`."""
    return asyncio.run(_Serving(protocol, ids, key, seconds, most_bytes).run(listener))


def take_part(
    protocol: Protocol,
    id: int,
    own: Tree,
    key: Tensor,
    address: tuple[str, int],
    *,
    seconds: float = 60.0,
    most_bytes: int = MOST_BYTES,
) -> None:
    """Run one client's side until the server says that it is over; a ProtocolError where it hangs up before."""
    client, step = protocol.client(id, own, key), 0
    next(client)
    with socket.create_connection(address, timeout=seconds) as connection:
        connection.sendall(_frame(protocol, Message(_HELLO, {}), 0, id))
        while (payload := _from_server(connection, step, most_bytes)).kind != _END:
            try:
                reply = client.send(Message(payload.kind, payload.tree))
            except StopIteration:
                return  # it has nothing more to say
            connection.sendall(_frame(protocol, reply or Message(_NOTHING, {}), step, id))
            step += 1


@dataclass
class _Serving:
    protocol: Protocol
    ids: Sequence[int]
    key: Tensor
    seconds: float
    most_bytes: int
    streams: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)  # how often each was asked
    done: Served = field(default_factory=lambda: Served({}))

    async def run(self, listener: socket.socket) -> Served:
        try:
            await self._gather(listener)
            await self._drive()
            ends = [self._send(id, Message(_END, {})) for id in self.streams]
            await asyncio.gather(*ends, return_exceptions=True)  # who is gone by now is in the sum, or is not
        finally:
            for _, writer in self.streams.values():
                writer.close()
        return self.done

    async def _gather(self, listener: socket.socket) -> None:
        """Connections of all who are expected, or of those who came in time."""
        complete = asyncio.Event()

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                data = await asyncio.wait_for(_read(reader, _HELLO_BYTES), self.seconds)
                payload = decode(data, _HELLO_BYTES)
            except _LOST:
                return writer.close()
            if payload.kind != _HELLO or payload.sender not in self.ids or payload.sender in self.streams:
                return writer.close()
            self.streams[payload.sender], self.steps[payload.sender] = (reader, writer), 0
            self._count(self.done.bytes_up, payload.sender, len(data))
            if len(self.streams) == len(self.ids):
                complete.set()
            return None

        server = await asyncio.start_server(greet, sock=listener)
        try:
            await asyncio.wait_for(complete.wait(), self.seconds)
        except TimeoutError:
            missing = [id for id in self.ids if id not in self.streams]
            self.done.lost |= dict.fromkeys(missing, f"did not connect within {self.seconds:g} seconds")
        finally:
            server.close()  # nobody joins later

    async def _drive(self) -> None:
        server = self.protocol.server(list(self.ids), self.key)
        try:
            outbox = next(server)
            while True:
                outbox = server.send(await self._exchange(outbox))
        except StopIteration as end:
            self.done.result = end.value

    async def _exchange(self, outbox: Mapping[int, Message]) -> dict[int, Message]:
        asked = [id for id in outbox if id in self.streams]
        replies = await asyncio.gather(*(self._ask(id, outbox[id]) for id in asked))
        inbox = {id: reply for id, reply in zip(asked, replies, strict=True) if reply is not None}
        for id, why in self.protocol.faults(inbox).items():
            self._lose(id, why)
            del inbox[id]
        return inbox

    async def _ask(self, id: int, message: Message) -> Message | None:
        """Its reply; None where it has none, or is lost now."""
        try:
            async with asyncio.timeout(self.seconds):
                await self._send(id, message)
                data = await _read(self.streams[id][0], self.most_bytes)
            self._count(self.done.bytes_up, id, len(data))
            payload = _checked(decode(data, self.most_bytes), id, self.steps[id])
        except _LOST as e:
            self._lose(id, self._why(e))
            return None
        self.steps[id] += 1
        return None if payload.kind == _NOTHING else Message(payload.kind, payload.tree)

    async def _send(self, id: int, message: Message) -> None:
        frame = _frame(self.protocol, message, self.steps[id], SERVER)
        self._count(self.done.bytes_down, id, len(frame) - _LENGTH.size)
        writer = self.streams[id][1]
        writer.write(frame)
        await writer.drain()

    def _lose(self, id: int, why: str) -> None:
        self.done.lost[id] = why
        self.streams.pop(id)[1].close()

    def _why(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"did not answer within {self.seconds:g} seconds"
        return "hung up" if isinstance(error, EOFError | ConnectionError) else str(error)

    def _count(self, bytes: dict[int, int], id: int, payload: int) -> None:
        bytes[id] = bytes.get(id, 0) + _LENGTH.size + payload


def _frame(protocol: Protocol, message: Message, step: int, sender: int) -> bytes:
    data = encode(protocol.layout(message), message.body, kind=message.kind, round=step, sender=sender)
    if len(data) >= 1 << 32:
        raise WireError(f"{message.kind}: {len(data)} bytes. A frame has fewer than 2**32: send several messages.")
    return _LENGTH.pack(len(data)) + data


def _checked(payload: Payload, sender: int, step: int) -> Payload:
    """A payload of whom it should be from, for this step: nothing old, nothing from somebody else."""
    if payload.sender != sender or payload.round != step:
        raise ProtocolError(f"a message of {payload.sender} for step {payload.round} came where {step} was due.")
    return payload


async def _read(reader: asyncio.StreamReader, most: int) -> bytes:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > most:
        raise WireError(f"a frame of {length} bytes; {most} are allowed.")
    return await reader.readexactly(length)


def _from_server(connection: socket.socket, step: int, most: int) -> Payload:
    (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size))
    if length > most:
        raise WireError(f"server: a frame of {length} bytes; {most} are allowed. Raise most_bytes if you trust it.")
    return _checked(decode(_receive(connection, length), most), SERVER, step)


def _receive(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        try:
            piece = connection.recv(min(size - len(data), 1 << 20))
        except TimeoutError as e:
            raise ProtocolError("server: sent nothing for too long. It may be gone; give it more seconds.") from e
        if not piece:
            raise ProtocolError("server: hung up before it said that it is over. Nothing can be said of the result.")
        data += piece
    return bytes(data)
