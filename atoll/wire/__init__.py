"""Payloads as bytes and back: what a client would really send. The specification is docs/wire.md.

>>> import torch
>>> update = {"delta": {"w": torch.ones(3)}, "signs": torch.tensor([1, 0, 1])}
>>> layout = Layout.of(update, signs={"kind": "bits", "bits": 1})
>>> data = encode(layout, update, kind="update", round=7, sender=3)
>>> len(data), layout.length(update).item(), layout.fixed_bytes
(103, 103, 103)
>>> payload = decode(data)
>>> payload.kind, payload.round, payload.sender, payload.tree["signs"].tolist()
('update', 7, 3, [1, 0, 1])

A room below the engines: they ask for lengths, and make bytes only where something really travels.
"""

from atoll.wire.envelope import SERVER
from atoll.wire.layout import Layout
from atoll.wire.part import Encoding, Part
from atoll.wire.payload import Payload, decode, encode, lengths
from atoll.wire.sizes import EMPTY_BYTES, wire_bytes

__all__ = [
    "EMPTY_BYTES",
    "SERVER",
    "Encoding",
    "Layout",
    "Part",
    "Payload",
    "decode",
    "encode",
    "lengths",
    "wire_bytes",
]
