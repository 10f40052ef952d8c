"""Networks of comparators as Triton kernels: every thread sorts the clients' values of one coordinate in registers.

A kernel is written for every number of clients and ranks: a line for each comparator, which no loop over registers
could say. Only `coordinates` imports this, and only where Triton is there.
"""

from __future__ import annotations

import linecache
from functools import lru_cache
from typing import Any

from atoll.reducers.sorting_network import Comparator, network


@lru_cache(maxsize=32)
def mean_of_ranks(clients: int, first: int, last: int) -> Any:
    """The kernel (x, out, d, stride, BLOCK): the mean of the values of these ranks, added up in their order."""
    import triton
    import triton.language as tl

    text = _source(clients, first, last)
    name = f"<mean of ranks {first} to {last} of {clients}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)  # where Triton reads it from
    scope: dict[str, Any] = {"tl": tl}
    exec(compile(text, name, "exec"), scope)
    return triton.jit(scope["kernel"])


def _source(clients: int, first: int, last: int) -> str:
    lines = [
        "def kernel(x, out, d, stride, BLOCK: tl.constexpr):",
        "at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)",
        "apart = tl.program_id(0).to(tl.int64) * 0 + stride",  # Triton makes a stride of one a plain number
        *(f"r{i} = tl.load(x + {i} * apart + at, mask=at < d, other=0.0)" for i in range(clients)),
        *(line for comparator in network(clients, first, last) for line in _compared(comparator)),
        f"total = {' + '.join(f'r{i}' for i in range(first, last + 1))}",
        f"tl.store(out + at, total / {last - first + 1}, mask=at < d)",
    ]
    return "\n    ".join(lines) + "\n"


def _compared(comparator: Comparator) -> list[str]:
    a, b = f"r{comparator.low}", f"r{comparator.high}"
    if not comparator.keeps_high:
        return [f"{a} = tl.minimum({a}, {b})"]
    if not comparator.keeps_low:
        return [f"{b} = tl.maximum({a}, {b})"]
    return [f"least = tl.minimum({a}, {b})", f"{b} = tl.maximum({a}, {b})", f"{a} = least"]
