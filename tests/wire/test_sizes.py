"""Bytes that are known before anything is encoded."""

import pytest
import torch

from atoll.tree import Tree
from atoll.wire import EMPTY_BYTES, Encoding, Layout, encode, wire_bytes

TREE: Tree = {
    "a": {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)},
    "b": torch.ones(4, dtype=torch.float16),
}


def sent(layout: Layout, values: Tree) -> int:
    return len(encode(layout, values, kind="update", round=3, sender=5))


def test_what_travels_as_it_is_takes_the_bytes_of_its_payload() -> None:
    assert wire_bytes(TREE) == sent(Layout.of(TREE), TREE) == Layout.of(TREE).most_bytes


def test_an_empty_message_is_an_envelope_and_a_header() -> None:
    assert sent(Layout(()), {}) == EMPTY_BYTES == wire_bytes({})


@pytest.mark.parametrize("coder", ["plain", "entropy", "zstd"])
@pytest.mark.parametrize("word", range(20))
def test_no_payload_is_longer_than_the_layout_says(coder: str, word: int) -> None:
    drawn = torch.Generator().manual_seed(word)
    levels = torch.randint(0, 8, (1 + 40 * word,), generator=drawn)
    places = torch.randperm(500, generator=drawn)[: 1 + 20 * word].sort().values
    values = {"levels": levels, "places": places}
    how: dict[str, Encoding] = {"levels": {"kind": "bits", "bits": 3}, "places": {"kind": "sorted", "limit": 500}}
    how["levels"]["coder"] = coder  # type: ignore[typeddict-item]
    layout = Layout.of(values, **how)
    assert sent(layout, values) <= layout.most_bytes
