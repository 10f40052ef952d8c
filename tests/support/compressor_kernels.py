"""Compressors by kernels against the same compressors by torch, on a GPU or under Triton's interpreter."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.func import vmap

from atoll import rng, tree
from atoll.rng import gpu
from atoll.transforms.compress import Drive, Leafwise, Qsgd, Sign, Sketch, Ternary, TopK, UniformQuantise, fused
from atoll.transforms.compress.compressor import Compression
from atoll.transforms.compress.largest import entries, largest
from atoll.transforms.compress.low_rank import LowRank, outer, power_step
from atoll.transforms.compress.rotation import rotated, rotated_back
from atoll.transforms.compress.sparse import random_places
from atoll.wire import positions

CLIENTS = 3
LEAFWISE: list[Leafwise] = [
    *(Qsgd(), Qsgd(levels=4), UniformQuantise(), UniformQuantise(bits=3), UniformQuantise(rotate=True)),
    *(Drive(), Drive(scale="nearest"), Sign(feedback=1.0)),
]


def compare(device: str, longest: int) -> None:
    """An AssertionError where a kernel and torch differ by more than rounding may."""
    keys = torch.stack([rng.key("client", i) for i in range(CLIENTS)]).to(device)
    small = updates(700).to(device)
    for n in (1, 7, 300, 5000, 33_000, 36_000, longest):
        x = updates(n).to(device)
        selection(device, x)
        lengths(device, n)
        if n > 1:
            splits(device, x)
            together(device, x, small)
            leaves(device, x, keys)
    products(device)
    thin_splits(device)
    folds(device, keys)


def updates(n: int) -> Tensor:
    """One row for each client; for some lengths with ties, with zeros beyond the first hundred, or all of one size."""
    x = torch.stack([rng.normal(rng.key("update", n, i), (n,)) for i in range(CLIENTS)])
    if n == 5000:
        x = (x * 2).round() / 2
    if n == 33_000:
        x[:, 100:] = 0
    if n == 36_000:  # a third of it: more than there is room for among the candidates
        x = torch.where(x.abs() > 1, x.sign(), 0.0)
    return x


def both(device: str, f: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """By kernels, then by torch."""
    with patch.object(fused, "DEVICES", {device}), patch.object(gpu, "DEVICES", {device}):
        assert fused.usable(torch.zeros(5, device=device))
        one = f(*args)
    with patch.object(fused, "DEVICES", set()), patch.object(gpu, "DEVICES", set()):
        return one, f(*args)


def alike(a: Tensor, b: Tensor, tolerance: float, share_off: float, what: str) -> None:
    off = ((a - b).abs() > tolerance * (1 + b.abs())).double().mean().item()
    assert off <= share_off, f"{what}: {off:.2%} differ, by up to {(a - b).abs().max()}"


def selection(device: str, x: Tensor) -> None:
    """Places of the largest, in order, of equal ones the first; places at random, bit for bit."""
    n = x.shape[1]
    for k in sorted({1, max(1, n // 100), max(1, n // 3), n}):
        ours, theirs = both(device, lambda x, k=k: vmap(lambda v: largest(v, k))(x), x)
        keys = torch.stack([rng.key("places", i) for i in range(CLIENTS)]).to(device)
        assert torch.equal(*both(device, lambda keys, k=k: vmap(lambda key: random_places(key, n, k))(keys), keys))
        sizes = x.abs().gather(1, ours)
        assert (ours[:, 1:] > ours[:, :-1]).all(), (n, k)
        assert torch.equal(sizes.sort(1).values, x.abs().gather(1, theirs).sort(1).values), (n, k)
        for row, places, least in zip(x.abs(), ours, sizes.amin(1), strict=True):
            taken = places[row[places] == least]
            assert torch.equal(taken, (row == least).nonzero()[: len(taken), 0]), (n, k)


def splits(device: str, x: Tensor) -> None:
    """What is sent, what is held back and the message, of clients that count and of one that does not."""
    arrives = torch.tensor([1.0, 0.0, 1.0], device=device)
    memory = x.roll(1, 1) * 2
    update, x = x, x + 0.5 * memory
    for c in (TopK(0.01), TopK(0.4), Ternary()):
        with patch.object(fused, "DEVICES", {device}):
            split = vmap(lambda v, m, a, c=c: c.split({"w": v}, {"w": m}, 0.5, a, {}))(update, memory, arrives)
            halves = c.sent_and_held({"w": update[0]}, {"w": 0.5 * memory[0]})
        sent, held = split.sent["w"], split.held["w"]
        assert all(torch.equal(a["w"], b[0]) for a, b in zip(halves, (sent, held), strict=True)), c
        places = split.packed.codes["w"]["places"]
        assert torch.equal(places, vmap(lambda v, c=c: first_largest(v, c.share))(x)), c
        values = x.gather(1, places)
        if isinstance(c, Ternary):
            size = values.abs().mean(1)
            alike(split.packed.numbers["w"]["size"], size, 1e-5, 0, f"size {c}")
            values = torch.where(values > 0, split.packed.numbers["w"]["size"][:, None], -size[:, None])
        wanted = torch.zeros_like(x).scatter(1, places, values)
        alike(sent, wanted, 1e-5, 0, f"sent {c}")
        assert torch.equal(held, x - sent * arrives[:, None]), c


def together(device: str, x: Tensor, small: Tensor) -> None:
    """Several tensors of an update come apart as each alone, whatever their sizes and the order of what is held."""
    arrives, c = torch.ones(CLIENTS, device=device), Ternary()

    def split(value: dict[str, Tensor], memory: dict[str, Tensor]) -> Any:
        return vmap(lambda v, m, a: c.split(v, m, 1.0, a, {}))(value, memory, arrives)

    with patch.object(fused, "DEVICES", {device}):
        value, held = {"a": small, "b": x, "c": -small}, {"c": 0.5 * small, "b": -2 * x, "a": small}
        joint = split(value, held)
        for name in value:
            alone = split({name: value[name]}, {name: held[name]})
            assert torch.equal(joint.sent[name], alone.sent[name]), (name, x.shape)
            assert torch.equal(joint.held[name], alone.held[name]), (name, x.shape)


def lengths(device: str, n: int) -> None:
    """Bytes of position codes, as wire makes them."""
    for k in sorted({1, max(1, n // 100), max(1, n // 3), n}):
        places = torch.stack([random_places(rng.key("codes", i), n, k).sort().values for i in range(CLIENTS)])
        with patch.object(positions, "DEVICES", {device}):
            ours = vmap(lambda p: positions.code_bytes(p, n))(places.to(device))
        assert ours.tolist() == [len(positions.encode_positions(p.numpy(), n)) for p in places], (n, k)


def first_largest(x: Tensor, share: float) -> Tensor:
    """Places of the largest in order, of equal ones the first: by a stable sort."""
    return x.abs().sort(descending=True, stable=True).indices[: entries(share, x.numel())].sort().values


def leaves(device: str, x: Tensor, keys: Tensor) -> None:
    """What arrives, both ways, and as a message that is packed and unpacked; a rounding may fall the other way."""
    n = x.shape[1]
    for c in LEAFWISE:
        ours, theirs = both(device, lambda x, c=c: vmap(c.arrived_leaf)(x, keys), x)
        alike(ours, theirs, 3e-3, 2e-3 if n > 1000 else 0.02, f"{c} {n}")
        sent, _ = both(device, lambda x, c=c: vmap(lambda v, k: c.unpack_leaf(*c.pack_leaf(v, k), v, k))(x, keys), x)
        alike(ours, sent, 3e-3, 2e-3 if n > 1000 else 0.02, f"{c} {n}, packed")
    alike(*both(device, lambda x: vmap(rotated)(x, keys), x), 2e-5, 0, f"rotated {n}")
    ours, _ = both(device, lambda x: vmap(lambda v, k: rotated_back(rotated(v, k), n, k))(x, keys), x)
    alike(ours, x, 2e-5, 0, f"rotated back {n}")
    sketch = Sketch(columns=256 if n < 10000 else 700)
    tables, theirs = both(device, lambda x: vmap(sketch.table)(x), x)
    alike(tables, theirs, 1e-4, 0, f"sketch {n}")
    alike(*both(device, lambda t: sketch.read(t, n), tables[0]), 0, 0, f"read from a sketch {n}")


def products(device: str) -> None:
    """One step of power iteration, also of zeros."""
    for rows, columns, rank in ((5, 9, 1), (64, 70, 3), (100, 300, 4), (512, 3136, 3)):
        matrix, start = (
            torch.stack([rng.normal(rng.key(what, rows, i), shape) for i in range(CLIENTS)]).to(device)
            for what, shape in (("matrix", (rows, columns)), ("start", (columns, rank)))
        )
        matrix[0] = 0
        ours, theirs = both(device, lambda m, s: vmap(lambda a, b: torch.cat(power_step(a, b)))(m, s), matrix, start)
        alike(ours, theirs, 3e-3, 0, f"power iteration {rows} x {columns}")
        left, right = ours[:, :rows], ours[:, rows:]
        alike(*both(device, lambda a, b: vmap(outer)(a, b), left, right), 3e-3, 0, f"product {rows} x {columns}")


def thin_splits(device: str) -> None:
    """What `low_rank` sends, holds back and keeps, of clients that count and of one that does not. Vectors go whole."""
    arrives, c = torch.tensor([1.0, 0.0, 1.0], device=device), LowRank(3, feedback=0.5)
    key = rng.key("unused").to(device)

    def parts(value: Any, own: Any) -> Any:
        return vmap(lambda v, o, arrives: Compression((c,))._parts(v, o, arrives, key)[:3])(value, own, arrives)

    for rows, columns in ((20, 9), (64, 70), (512, 3136)):
        n = rows * columns
        value, memory = (
            {"w": x.reshape(CLIENTS, rows, columns).contiguous(), "b": x[:, :rows]}
            for x in (updates(n).to(device), 2 * updates(n + 1)[:, 1:].to(device))
        )
        value["w"][2], memory["w"][2] = 0, 0
        start = c.own({name: x[0] for name, x in value.items()})
        kept = {"0": {path: x.expand(CLIENTS, *x.shape) for path, x in start.items()}}
        ours, theirs = both(device, parts, value, {"fading_residual": memory, "kept": kept})
        for one, other, what in zip(ours, theirs, ("sent", "held", "kept"), strict=True):
            for (path, a), (_, b) in zip(tree.paths(one), tree.paths(other), strict=True):
                alike(a, b, 3e-3, 0, f"low_rank {rows} x {columns}, {what} {path}")
        full = value["w"] + 0.5 * memory["w"]
        alike(ours[1]["w"], full - ours[0]["w"] * arrives[:, None, None], 1e-5, 0, f"held {rows} x {columns}")


def folds(device: str, keys: Tensor) -> None:
    """New keys, bit for bit."""
    for data in (0, 9, (5 << 33) + 1, (1 << 63) - 1):
        assert torch.equal(*both(device, lambda k, d=data: vmap(lambda one: rng.fold(one, d))(k), keys))
        assert torch.equal(*both(device, lambda k, d=data: rng.fold(k[0], d), keys))
