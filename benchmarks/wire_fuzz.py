"""Hostile bytes for `wire.decode`: mutated payloads, most of them with lengths and checksum put right again.

    python benchmarks/wire_fuzz.py [--cases 100000] [--seed 0] [--only CASE]

Each is decoded, with room for 64 MiB more than the process had (RLIMIT_AS) and 16 MiB of tensors allowed. It must be a
payload, which encodes again to the length that its layout says (if it has up to a MiB), or a WireError. Anything else
is shown with its case.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgpack
import torch

from atoll import tree
from atoll.errors import WireError
from atoll.wire import Layout, decode, encode
from atoll.wire.envelope import ENVELOPE, Envelope

ALLOWED = 16 << 20  # bytes of tensors
ROOM = 64 << 20  # bytes that the process may grow by
EDGES = (1, 8, 12, 16, 20, 22, 24, 31, 32, 40, 48, 63, 64)
INTEGERS = (0, -1, *(n for edge in EDGES for n in ((1 << edge) - 1, 1 << edge, (1 << edge) + 1) if n < 1 << 64))


def examples() -> list[bytes]:
    """Payloads with every kind, coder and mode."""
    torch.manual_seed(0)
    dense = torch.randn(300)
    skewed = (torch.rand(2000) < 0.03).to(torch.uint8)
    few, many = torch.randperm(1000)[:20].sort().values, torch.randperm(300)[:200].sort().values
    some: list[tuple[tree.Tree, dict[str, Any]]] = [
        ({}, {}),
        ({"w": dense.reshape(3, 100), "b": torch.zeros(0, 4), "n": torch.tensor(7)}, {}),
        ({"a": {"b": {"c": dense.half(), "d": dense.bfloat16(), "on": dense > 0}}, "none": {"at": {}}}, {}),
        ({"levels": torch.arange(100) % 16, "signs": dense > 0}, {"levels": bits(4), "signs": bits(1)}),
        ({"wide": torch.arange(70)}, {"wide": bits(31)}),
        ({"few": few, "many": many}, {"few": below(1000), "many": below(300)}),
        ({"few": few * 2**30}, {"few": below(1 << 48)}),
        ({"skewed": skewed}, {"skewed": bits(2, "entropy")}),
        ({"skewed": skewed, "short": skewed[:4]}, {"*": bits(4, "zstd")}),
        (
            {"zeros": torch.zeros(4000), "all": torch.arange(4000)},
            {"zeros": {"coder": "zstd"}, "all": below(4000, "zstd")},
        ),
    ]
    return [encode(Layout.of(x, **how), x, kind="update", round=3, sender=i) for i, (x, how) in enumerate(some)]


def bits(width: int, coder: str = "plain") -> dict[str, Any]:
    return {"kind": "bits", "bits": width, "coder": coder}


def below(limit: int, coder: str = "plain") -> dict[str, Any]:
    return {"kind": "sorted", "limit": limit, "coder": coder}


def pieces(data: bytes) -> tuple[bytes, bytes]:
    """Header and body."""
    cut = ENVELOPE.size + ENVELOPE.unpack_from(data)[7]
    return data[ENVELOPE.size : cut], data[cut:]


def sealed(header: bytes, body: bytes) -> bytes:
    """With the lengths and the checksum that belong to them."""
    return Envelope("update", 3, 4, len(header), len(body)).sealed(header, body)


def damaged(data: bytes, rng: random.Random) -> bytes:
    """A few bits flipped, a piece cut out, put in, doubled, or replaced by an extreme integer."""
    buffer = bytearray(data or b"\0")
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at, size = rng.randrange(len(buffer) + 1), rng.choice((1, 1, 2, 4, 8, 50))
        match rng.randrange(5):
            case 0 if buffer:
                buffer[at % len(buffer)] ^= 1 << rng.randrange(8)
            case 1:
                del buffer[at : at + size]
            case 2:
                buffer[at:at] = rng.randbytes(size)
            case 3:
                buffer[at:at] = buffer[at : at + size]
            case 4:
                number = rng.choice(INTEGERS) % (1 << 64)
                buffer[at : at + 4] = number.to_bytes(8, "little")[: rng.choice((4, 8))]
    return bytes(buffer)


def edited_header(header: bytes, rng: random.Random) -> bytes:
    """Still msgpack, but for a value somewhere: mostly another integer for an integer, else anything."""
    values = list(msgpack.Unpacker(_Once(header)))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        inside, at = rng.choice(list(places(values)))
        integer = rng.choice((rng.choice(INTEGERS), rng.randrange(14), rng.randrange(5000)))
        strange = ("a/b", "w", "x" * 2000, "/" * 40, None, True, 0.5, b"", {}, [], [0], integer)
        whole = isinstance(inside[at], int) and rng.random() < 0.9
        inside[at : at + 1] = [integer] if whole else [rng.choice(strange)] * rng.randrange(3)
    return b"".join(msgpack.packb(value) for value in values)


def places(values: list[Any]) -> Iterator[tuple[list[Any], int]]:
    """Every list with every place in it."""
    for at, value in enumerate(values):
        yield values, at
        if isinstance(value, list):
            yield from places(value)


class _Once:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, size: int) -> bytes:
        data, self.data = self.data, b""
        return data


def mutate(data: bytes, other: bytes, rng: random.Random) -> bytes:
    header, body = pieces(data)
    ways: Sequence[Callable[[], bytes]] = (
        lambda: damaged(data, rng),
        lambda: damaged(data[: ENVELOPE.size], rng) + header + body,
        lambda: sealed(damaged(header, rng), body),
        lambda: sealed(header, damaged(body, rng)),
        lambda: sealed(edited_header(header, rng), body),
        lambda: sealed(edited_header(header, rng), damaged(body, rng)),
        lambda: sealed(edited_header(header, rng), pieces(other)[1]),
        lambda: sealed(
            rng.choice((b"\x91", b"\xdc\x00\x10", b"\xdd\xff\xff\xff\xff", b"\xdf\xff")) * rng.randrange(3000), body
        ),
        lambda: sealed(header + bytes(rng.randrange(1 << 21)), body),
        lambda: sealed(rng.randbytes(rng.randrange(200)), rng.randbytes(rng.randrange(200))),
    )
    return rng.choice(ways)()


def outcome(data: bytes) -> str:
    """In a few words; anything but a payload or a WireError is raised."""
    try:
        payload = decode(data, ALLOWED)
    except WireError as e:
        last = traceback.extract_tb(e.__traceback__)[-1]
        return f"refused by {Path(last.filename).stem}.{last.name}, line {last.lineno}"
    if tree.nbytes(payload.tree) > ALLOWED:
        raise AssertionError(f"{tree.nbytes(payload.tree)} bytes were decoded")
    if tree.nbytes(payload.tree) > 1 << 20:
        return "decoded to over a MiB"
    again = encode(payload.layout, payload.tree, kind=payload.kind, round=payload.round, sender=payload.sender)
    if payload.layout.measurable and payload.layout.length(payload.tree).item() != len(again):
        raise AssertionError(f"{len(again)} bytes have another length by formula")
    return "decoded"


def confine() -> None:
    """No more than ROOM beside what the process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM,) * 2)


def run(cases: Sequence[int], seed: int) -> tuple[Counter[str], list[int]]:
    originals = examples()
    for data in originals:
        assert outcome(data) == "decoded"
    confine()
    seen, failed = Counter[str](), []
    for case in cases:
        rng = random.Random(f"{seed} {case}")
        data = mutate(rng.choice(originals), rng.choice(originals), rng)
        try:
            seen[outcome(data)] += 1
        except Exception:  # whatever it is, it is what we look for
            failed.append(case)
            print(f"case {case}: {data[:200].hex()}\n{traceback.format_exc()}", file=sys.stderr)
    return seen, failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    seen, failed = run([options.only] if options.only is not None else range(options.cases), options.seed)
    for words, count in seen.most_common():
        print(f"{count:8,}  {words}")
    print(f"{sum(seen.values()):,} cases in {time.perf_counter() - began:.0f} s, {len(failed)} failed {failed[:20]}")
    print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
