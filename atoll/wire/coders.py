"""Lossless coders over a part's plain bytes: `entropy` (constriction) for small alphabets, `zstd` (zstandard) for any.

Both libraries are optional and imported when a layout asks for them.
"""

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.wire.part import Part

STORED, CODED = b"\0", b"\1"  # how a part begins; a code that would be longer than the plain bytes is not used
_BLOCK = 1 << 16  # symbols decoded at a time, so that no part is there twice
_MOST_WINDOW = 1 << 23  # bytes that a zstd frame may ask for: RFC 8878 says to read up to 8 MB
_LEVEL = 3


def _library(name: str, part: Part) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise part.error(f"coder {part.coder!r} needs {name}. Run: pip install 'atoll[wire]', or use plain.") from None


def compress(part: Part, plain: bytes) -> bytes:
    """A zstd frame that says how long its content is."""
    return bytes(_library("zstandard", part).ZstdCompressor(level=_LEVEL).compress(plain))


def decompress(part: Part, frame: memoryview) -> memoryview:
    """The plain bytes, no more than the part can have."""
    zstd = _library("zstandard", part)
    try:
        claims = zstd.get_frame_parameters(frame)
        if claims.content_size > part.plain_bytes or claims.window_size > _MOST_WINDOW:
            raise part.error(f"a zstd frame of {claims.content_size} bytes. It has at most {part.plain_bytes}.")
        return memoryview(zstd.ZstdDecompressor().decompress(frame, part.plain_bytes, allow_extra_data=False))
    except zstd.ZstdError as e:
        raise part.error(f"is no zstd frame ({e}). Was it written by another coder?") from None


def entropy_encode(part: Part, symbols: NDArray[Any]) -> bytes:
    """The table of frequencies as u16, then the words of an ANS coder as u32."""
    counts = np.bincount(symbols.astype(np.int64), minlength=1 << part.bits)
    table = (-(-counts * 65535 // max(1, counts.max()))).astype("<u2")  # rounded up: what occurs is never 0
    constriction = _library("constriction", part)
    coder = constriction.stream.stack.AnsCoder()
    coder.encode_reverse(symbols.astype(np.int32), _model(constriction, table))
    return bytes(table.tobytes() + coder.get_compressed().astype("<u4").tobytes())


def entropy_decode(part: Part, code: memoryview, dtype: np.dtype[Any]) -> NDArray[Any]:
    """All symbols of a part; whatever the code is, there are no more than its shape says."""
    constriction, cut = _library("constriction", part), 2 << part.bits
    if len(code) < cut or (len(code) - cut) % 4:
        raise part.error(f"{len(code)} bytes of entropy code. It has {cut} of frequencies, then words of 4.")
    table, words = np.frombuffer(code[:cut], "<u2"), np.frombuffer(code[cut:], "<u4").astype(np.uint32)
    if not table.any() or (len(words) and not words[-1]):
        raise part.error("its frequencies or its last word are 0. No entropy code has that.")
    coder, model = constriction.stream.stack.AnsCoder(words), _model(constriction, table)
    out = np.empty(part.size, dtype)
    for start in range(0, part.size, _BLOCK):
        out[start : start + _BLOCK] = coder.decode(model, min(_BLOCK, part.size - start))
    if not coder.is_empty():
        raise part.error("words of its entropy code are left over. Its shape and its code do not belong together.")
    return out


def _model(constriction: Any, table: NDArray[Any]) -> Any:
    return constriction.stream.model.Categorical(table.astype(np.float64), perfect=False)
