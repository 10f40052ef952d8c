"""Milliseconds and bytes of payloads: 1.6 million float32, top-k of 1 % of them, signs, and levels of 4 bits.

    python benchmarks/wire.py [--repeats 25] [--size 1600000]

The least of several, on one thread: other work on the machine only adds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from atoll.tree import Tree
from atoll.wire import Encoding, Layout, decode, encode


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    work()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return 1000 * min(seconds)


def payloads(size: int) -> dict[str, tuple[Tree, dict[str, Encoding]]]:
    """Trees of an update of `size` numbers, as compressors would send it, and how."""
    update = torch.randn(size, generator=torch.Generator().manual_seed(0))
    chosen = update.abs().topk(size // 100).indices.sort().values
    sparse = {"values": update[chosen], "indices": chosen}
    levels = (update * 2 + 8).clamp(0, 15).to(torch.uint8)
    positions: Encoding = {"kind": "sorted", "limit": size}
    return {
        "float32": ({"delta": update}, {}),
        "float32, zstd": ({"delta": update}, {"delta": {"coder": "zstd"}}),
        "top-k 1 %": (sparse, {"indices": positions}),
        "top-k 1 %, int64 indices": (sparse, {}),
        "signs, 1 bit": ({"signs": update > 0}, {"signs": {"kind": "bits", "bits": 1}}),
        "levels, 4 bits": ({"levels": levels}, {"levels": {"kind": "bits", "bits": 4}}),
        "levels, 4 bits, entropy": ({"levels": levels}, {"levels": {"kind": "bits", "bits": 4, "coder": "entropy"}}),
    }


def row(name: str, values: Tree, encodings: dict[str, Encoding], repeats: int) -> str:
    layout = Layout.of(values, **encodings)
    data = encode(layout, values, kind="update", round=0, sender=0)
    encoding = milliseconds(lambda: encode(layout, values, kind="update", round=0, sender=0), repeats)
    decoding = milliseconds(lambda: decode(data), repeats)
    length = f"{milliseconds(lambda: layout.length(values), repeats):.2f}" if layout.measurable else "by encoding"
    return f"| {name} | {len(data):,} | {encoding:.2f} | {decoding:.2f} | {length} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--size", type=int, default=1_600_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| payload | bytes | encode ms | decode ms | length ms |\n|---|---|---|---|---|")
    for name, (values, encodings) in payloads(options.size).items():
        print(row(name, values, encodings, options.repeats))


if __name__ == "__main__":
    main()
