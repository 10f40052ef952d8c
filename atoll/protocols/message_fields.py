"""What a message must look like before anything in it is used; what does not is refused with a ProtocolError."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from atoll.core import Message
from atoll.errors import ProtocolError
from atoll.protocols.keys import SESSION_BYTES, byte_row
from atoll.tree import Tree

Shape = tuple[int | None, ...]  # None: any length
Fields = dict[str, tuple[torch.dtype, Shape]]
BYTES, NUMBERS = torch.uint8, torch.int64
_MOST_CLIENTS = 1 << 20


def say(kind: str, session: bytes, **fields: Tensor) -> Message:
    """A message of one session."""
    return Message(kind, {"session": byte_row(session), **fields})


def read(message: Message, kind: str, where: str, session: bytes | None, **fields: tuple[torch.dtype, Shape]) -> Tree:
    """The body of a message of this kind and session (None: any) that has these fields and no others."""
    if message.kind != kind:
        raise ProtocolError(f"{where}: a message {message.kind!r} where {kind!r} was due. Keep the protocol's order.")
    wanted: Fields = {"session": (BYTES, (SESSION_BYTES,)), **fields}
    odd = sorted(set(message.body) ^ set(wanted))
    if odd:
        raise ProtocolError(f"{where}: {kind!r} lacks, or should not have, {', '.join(odd)}. Send {', '.join(wanted)}.")
    for name, (dtype, shape) in wanted.items():
        if not _fits(message.body[name], dtype, shape):
            raise ProtocolError(f"{where}: {name!r} of {kind!r} is not {_words(dtype, shape)}. Was it cut on its way?")
    if session is not None and not _is_of(session, message.body):
        raise ProtocolError(f"{where}: {kind!r} is of another session. Messages of earlier rounds are not taken.")
    return message.body


def read_all(
    inbox: Mapping[int, Message],
    kind: str,
    session: bytes,
    asked: Sequence[int],
    least: int,
    **fields: tuple[torch.dtype, Shape],
) -> dict[int, Tree]:
    """Who answered the server, and what, in the order of ids; fewer than must stay end the round."""
    strangers = set(inbox) - set(asked)
    if strangers:
        raise ProtocolError(f"server: {kind!r} from client {min(strangers)}, which was not asked. Refuse it.")
    bodies = {id: read(inbox[id], kind, f"server, from client {id}", session, **fields) for id in sorted(inbox)}
    enough(len(bodies), least, "server", f"clients answered with {kind!r}")
    return bodies


def begin(session: bytes, ids: Sequence[int]) -> dict[int, Message]:
    """The server's first message: the session, and how many are asked."""
    return dict.fromkeys(sorted(ids), say("start", session, clients=torch.tensor(len(ids))))


def read_start(message: Message, where: str) -> tuple[bytes, int]:
    """The session, and how many are asked."""
    body = read(message, "start", where, None, clients=(NUMBERS, ()))
    clients = int(body["clients"])
    if not 2 <= clients <= _MOST_CLIENTS:
        raise ProtocolError(f"{where}: a round of {clients} clients. A sum hides a vector among 2 to {_MOST_CLIENTS}.")
    return body["session"].numpy().tobytes(), clients


def id_row(ids: Sequence[int]) -> Tensor:
    """Ids as they travel."""
    return torch.tensor(ids, dtype=NUMBERS)


def one_length(vectors: Mapping[int, Tree]) -> int:
    """Of all vectors that arrived."""
    sizes = {len(body["vector"]) for body in vectors.values()}
    if len(sizes) > 1:
        raise ProtocolError(f"server: vectors of {min(sizes)} to {max(sizes)} numbers. All have one length.")
    return sizes.pop()


def read_ids(ids: Tensor, where: str, among: Sequence[int] | None = None, me: int | None = None) -> list[int]:
    """Increasing, distinct, not negative; all among those known, and with whom it must have."""
    listed: list[int] = ids.tolist()
    if any(b <= a for a, b in pairwise(listed)) or (listed and listed[0] < 0):
        raise ProtocolError(f"{where}: ids that do not increase. List every client once, in order.")
    strangers = set(listed) - set(among) if among is not None else set()
    if strangers:
        raise ProtocolError(f"{where}: client {min(strangers)} was not in the list before. Lists only get shorter.")
    if me is not None and me not in listed:
        raise ProtocolError(f"{where}: a list without client {me} itself. Nothing is given away for it.")
    return listed


def enough(left: int, least: int, where: str, what: str) -> None:
    """Refuse to go on with fewer than the threshold."""
    if left < least:
        raise ProtocolError(
            f"{where}: {left} {what}, and the threshold is {least}. Nothing was revealed: begin a new round, with more "
            "clients or a lower threshold."
        )


def _is_of(session: bytes, body: Tree) -> bool:
    return hmac.compare_digest(body["session"].numpy().tobytes(), session)


def _fits(value: object, dtype: torch.dtype, shape: Shape) -> bool:
    if not isinstance(value, Tensor) or value.dtype != dtype or value.dim() != len(shape):
        return False
    return all(n is None or n == m for n, m in zip(shape, value.shape, strict=True))


def _words(dtype: torch.dtype, shape: Shape) -> str:
    sizes = ", ".join("any" if n is None else str(n) for n in shape)
    return f"({sizes}) of {dtype}"
