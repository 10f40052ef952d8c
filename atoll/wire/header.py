"""The header of a payload: its layout as a stream of msgpack values, read with strict limits.

    how many parts, then for each [path, kind, dtype, shape, parameter, coder]; how many empty dicts, then their paths

`parameter` is `bits` or `limit`, whichever the kind has. A stream, not one array of all: no array in it is longer than
a shape, so a hostile header cannot make msgpack reserve room for millions of values that never come.
"""

from functools import lru_cache
from typing import Any, TypeVar

import msgpack

from atoll.errors import WireError
from atoll.wire.envelope import MOST_HEADER
from atoll.wire.layout import MOST_PARTS, Layout
from atoll.wire.part import CODERS, DTYPES, KINDS, MOST_AXES, MOST_PATH, Part

T = TypeVar("T")


@lru_cache(maxsize=16)  # clients of a round send the same one
def read_header(data: bytes) -> Layout:
    """The layout that hostile bytes describe, or a `WireError`."""
    stream = msgpack.Unpacker(
        max_buffer_size=MOST_HEADER,
        max_array_len=MOST_AXES,
        max_str_len=MOST_PATH,
        **dict.fromkeys(("max_map_len", "max_bin_len", "max_ext_len"), 0),
    )
    stream.feed(data)
    try:
        parts = tuple(_part(_next(stream, list)) for _ in range(_count(stream)))
        empty = tuple(_next(stream, str) for _ in range(_count(stream)))
    except (ValueError, msgpack.UnpackException) as e:
        if isinstance(e, WireError):
            raise
        raise WireError(f"header: is not the msgpack of a layout ({type(e).__name__}). See docs/wire.md.") from None
    if stream.tell() != len(data):
        raise WireError(f"header: {len(data) - stream.tell()} bytes behind its end. Its length must be its own.")
    return Layout(parts, empty)


def _next(stream: Any, kind: type[T]) -> T:
    return _typed(stream.unpack(), kind)


def _count(stream: Any) -> int:
    count = _next(stream, int)
    if not 0 <= count <= MOST_PARTS:
        raise WireError(f"header: {count} parts. There are 0 to {MOST_PARTS}.")
    return count


def _typed(value: Any, kind: type[T]) -> T:
    if type(value) is not kind:  # True is no number here
        raise WireError(f"header: a {type(value).__name__} where a {kind.__name__} belongs. See docs/wire.md.")
    return value


def _part(fields: list[Any]) -> Part:
    if len(fields) != 6:
        raise WireError(f"header: a part of {len(fields)} fields. 6 belong there: see docs/wire.md.")
    kind, dtype, parameter, coder = (_typed(fields[i], int) for i in (1, 2, 4, 5))
    return Part(
        _typed(fields[0], str),
        tuple(_typed(n, int) for n in _typed(fields[3], list)),
        _named(DTYPES, dtype, "dtype"),
        kind=_named(KINDS, kind, "kind"),
        bits=parameter * (kind == KINDS.index("bits")),
        limit=parameter * (kind != KINDS.index("bits")),
        coder=_named(CODERS, coder, "coder"),
    )


def _named(known: tuple[T, ...], code: int, what: str) -> T:
    if not 0 <= code < len(known):
        raise WireError(f"header: {what} {code} is unknown. Known are 0 to {len(known) - 1}; or this side is too old.")
    return known[code]
