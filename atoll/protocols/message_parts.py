"""What another party sent, looked at before it is used: what is not as due is a ProtocolError."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from atoll.core import Message
from atoll.errors import ProtocolError
from atoll.tree import Tree


def need(holds: bool, what: str) -> None:
    if not holds:
        raise ProtocolError(what)


def body_of(message: Message, kind: str, sender: str) -> Tree:
    """The body of a message, which must be of this kind."""
    need(message.kind == kind, f"{sender}: sent {message.kind!r} where {kind!r} was due. Messages keep their order.")
    return message.body


def branch(body: Tree, name: str, sender: str) -> Tree:
    part = body.get(name)
    if not isinstance(part, dict):
        raise ProtocolError(f"{sender}: its message has no part {name!r}. It does not keep to the protocol.")
    return part


def leaf(body: Tree, name: str, dtype: torch.dtype, dim: int, sender: str) -> Tensor:
    part = body.get(name)
    if not isinstance(part, Tensor) or part.dtype != dtype or part.dim() != dim:
        raise ProtocolError(
            f"{sender}: {name!r} is not a tensor of {dtype} with {dim} axes. It does not keep to the protocol."
        )
    return part


def octets(body: Tree, name: str, sender: str) -> bytes:
    return leaf(body, name, torch.uint8, 1, sender).numpy().tobytes()


def whole(body: Tree, name: str, sender: str) -> int:
    return int(leaf(body, name, torch.int64, 0, sender))


def distinct_ids(body: Tree, sender: str) -> list[int]:
    ids: list[int] = leaf(body, "ids", torch.int64, 1, sender).tolist()
    need(len(set(ids)) == len(ids), f"{sender}: names a client twice. A vector is in a sum once.")
    return ids


def own_residues(own: Tree, bits: int, id: int) -> Tensor:
    """The vector that a client holds, which must be residues: what lies outside would go into its neighbour's slot."""
    vector = leaf(own, "vector", torch.int64, 1, f"client {id}")
    inside = not len(vector) or (int(vector.min()) >= 0 and int(vector.max()) < 1 << bits)
    need(inside, f"client {id}: holds numbers that are no residues modulo 2^{bits}. Reduce them before the protocol.")
    return vector


def to_tensor(data: bytes) -> Tensor:
    """Bytes as they travel."""
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())
