"""Entropy codes and zstd frames: short, as docs/wire.md says, and refused where a library is missing."""

import bisect
import sys

import numpy as np
import pytest
import torch

from atoll.errors import WireError
from atoll.wire import Layout, Part, decode, encode
from atoll.wire.coders import decompress, entropy_decode, entropy_encode

FREQUENCIES = {
    "ternary": [0.98, 0.01, 0.01, 0],
    "16 levels of a Gaussian": np.exp(-0.5 * ((np.arange(16) - 7.5) / 2) ** 2),
    "uniform bytes": np.ones(256),
    "one of two": [0.0, 1.0],
}


def drawn(frequencies, count: int) -> np.ndarray:
    p = np.asarray(frequencies, float)
    return np.random.default_rng(0).choice(len(p), count, p=p / p.sum())


def entropy_bytes(symbols: np.ndarray) -> float:
    p = np.bincount(symbols) / len(symbols)
    return float(-len(symbols) * (p[p > 0] * np.log2(p[p > 0])).sum()) / 8


def levels(frequencies) -> Part:
    bits = (len(frequencies) - 1).bit_length()
    return Part("levels", (100_000,), "uint8", kind="bits", bits=bits, coder="entropy")


@pytest.mark.parametrize("frequencies", FREQUENCIES.values(), ids=FREQUENCIES)
def test_an_entropy_code_is_as_long_as_the_entropy_within_two_percent(frequencies):
    part, symbols = levels(frequencies), drawn(frequencies, 100_000)
    values = {"levels": torch.from_numpy(symbols).to(torch.uint8)}
    layout = Layout.of(values, levels={"kind": "bits", "bits": part.bits, "coder": "entropy"})
    data = encode(layout, values, kind="update", round=0, sender=0)
    plain = 60 + len(layout.header) + 12_500 * part.bits
    table, around = 2 << part.bits, 60 + len(layout.header) + 5
    assert len(data) <= min(1.02 * entropy_bytes(symbols) + table + 8 + around, plain + 5)
    assert torch.equal(decode(data).tree["levels"], values["levels"])


def slow_ans(code: bytes, count: int, bits: int) -> list[int]:
    """As docs/wire.md writes it down, in Python's own integers."""
    table, words = np.frombuffer(code[: 2 << bits], "<u2").tolist(), np.frombuffer(code[2 << bits :], "<u4").tolist()
    scale, starts, below = ((1 << 24) - len(table)) / sum(table), [], 0
    for symbol, weight in enumerate(table):
        starts.append(int(below * scale) + symbol)
        below += weight
    starts.append(1 << 24)
    state, symbols = 0, []
    for _ in range(min(2, len(words))):
        state = state << 32 | words.pop()
    for _ in range(count):
        quantile = state & 0xFFFFFF
        symbol = bisect.bisect_right(starts, quantile) - 1
        symbols.append(symbol)
        state = (state >> 24) * (starts[symbol + 1] - starts[symbol]) + quantile - starts[symbol]
        if state < 1 << 32 and words:
            state = state << 32 | words.pop()
    assert (state, words) == (0, [])
    return symbols


@pytest.mark.parametrize("frequencies", FREQUENCIES.values(), ids=FREQUENCIES)
def test_an_entropy_code_is_what_the_specification_says(frequencies):
    symbols = drawn(frequencies, 3000)
    part = Part("x", (3000,), "int64", kind="bits", bits=(len(frequencies) - 1).bit_length(), coder="entropy")
    assert slow_ans(entropy_encode(part, symbols), 3000, part.bits) == symbols.tolist()


def test_what_is_rare_still_has_a_frequency():
    part = Part("x", (100_000,), "uint8", kind="bits", bits=1, coder="entropy")
    assert np.frombuffer(entropy_encode(part, np.arange(100_000) == 7)[:4], "<u2").tolist() == [65535, 1]


def test_a_code_that_would_be_longer_is_not_used():
    x = {"x": torch.arange(16).to(torch.uint8)}
    for coder in ("entropy", "zstd"):
        coded = encode(Layout.of(x, x={"kind": "bits", "bits": 4, "coder": coder}), x, kind="update", round=0, sender=0)
        plain = encode(Layout.of(x, x={"kind": "bits", "bits": 4}), x, kind="update", round=0, sender=0)
        assert len(coded) == len(plain) + 5


@pytest.mark.parametrize(("coder", "library"), [("entropy", "constriction"), ("zstd", "zstandard")])
def test_a_missing_library_is_said_with_the_way_to_it(coder, library, monkeypatch):
    x = {"x": torch.zeros(1000, dtype=torch.uint8)}
    layout = Layout.of(x, x={"kind": "bits", "bits": 4, "coder": coder})
    data = encode(layout, x, kind="update", round=0, sender=0)
    monkeypatch.setitem(sys.modules, library, None)
    for work in (lambda: encode(layout, x, kind="update", round=0, sender=0), lambda: decode(data)):
        with pytest.raises(WireError, match=rf"x: .* needs {library}. Run: pip install 'atoll\[wire\]'"):
            work()


def test_plain_payloads_need_neither_library(monkeypatch):
    for library in ("constriction", "zstandard"):
        monkeypatch.setitem(sys.modules, library, None)
    x = {"x": torch.arange(5)}
    assert decode(encode(Layout.of(x), x, kind="update", round=0, sender=0)).tree["x"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("0000", "2 bytes of entropy code"),
        ("0100010001", "5 bytes of entropy code"),
        ("00000000", "frequencies or its last word are 0"),
        ("0100010000000000", "frequencies or its last word are 0"),
        ("01000100" + "01000000" * 9, "left over"),
    ],
)
def test_what_is_no_entropy_code_is_refused(code, words):
    part = Part("x", (3,), "bool", kind="bits", bits=1, coder="entropy")
    with pytest.raises(WireError, match=words):
        entropy_decode(part, memoryview(bytes.fromhex(code)), np.dtype(bool))


def test_a_zstd_frame_that_claims_too_much_is_refused_before_it_is_opened():
    import zstandard

    part = Part("x", (10,), "uint8", coder="zstd")
    long = zstandard.ZstdCompressor().compress(bytes(11))
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(10))
    window = bytes.fromhex("28b52ffd c0 88 0a00000000000000 510000") + bytes(10)  # of 128 MiB, for 10 bytes
    assert zstandard.get_frame_parameters(window).window_size == 1 << 27
    for frame in (long, unsized, window):
        with pytest.raises(WireError, match="It has at most 10"):
            decompress(part, memoryview(frame))
    for frame in (b"no frame", zstandard.ZstdCompressor().compress(bytes(5)) * 2):
        with pytest.raises(WireError, match="is no zstd frame"):
            decompress(part, memoryview(frame))
