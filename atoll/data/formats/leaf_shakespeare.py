"""Shakespeare's roles, as LEAF writes them."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from atoll.data.dataset import Dataset
from atoll.data.formats import safe_read
from atoll.data.formats.label_encoding import named_clients
from atoll.data.formats.leaf_json import Array, LeafExamples, leaf_dataset, read_leaf
from atoll.data.formats.split import Share
from atoll.data.sources import Tokens
from atoll.tree import Tree

_WINDOW = 80
# The 80 characters that LEAF's model knows, in its order.
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"


def leaf_shakespeare(
    path: Path,
    targets: Literal["last", "all"] = "last",
    unknown: Literal["refuse", "extra"] = "refuse",
    test_share: Share = 0.1,
    seed: int = 0,
) -> Dataset:
    """Shakespeare in LEAF's JSON: the character after 80 others; natural clients by "user", the role of a play.

    `path` holds train/ and test/ with LEAF's files, or is one file. targets = "last": only the character behind the
    window is learned, as in LEAF: 80 classes, for the model "char_lstm" with predict = "last". "all": every
    position's next character (the windows overlap, so most count many times). A character that LEAF's alphabet lacks
    is refused, or number 80 ("extra"). Where the files have the plays, "play" is a second key. Caldas et al. (2018),
    https://arxiv.org/abs/1812.01097.
    """

    def convert(x: list[Any], y: list[Any], where: str) -> tuple[Array, Array]:
        if any(not isinstance(t, str) or len(t) != _WINDOW for t in x) or any(
            not isinstance(c, str) or len(c) != 1 for c in y
        ):
            safe_read.refuse(where, "not every x has 80 characters and every y one", "Use the files of LEAF's scripts")
        return _numbers("".join(x), unknown, where).reshape(-1, _WINDOW), _numbers("".join(y), unknown, where)

    parts = read_leaf(path, convert, test_share, seed)

    def columns(part: LeafExamples) -> Tree:
        x, y = torch.from_numpy(part.x), torch.from_numpy(part.y)
        return {"x": x, "y": y.long() if targets == "last" else torch.cat([x[:, 1:], y[:, None]], 1)}

    kind: Literal["classification", "next_token"] = "classification" if targets == "last" else "next_token"
    size = len(ALPHABET) + (unknown == "extra")
    dataset = leaf_dataset("leaf_shakespeare", kind, parts, columns, size, Tokens(), size)
    play = parts[0].group
    if None not in set(play):
        keys, names = named_clients({"play": play})
        return replace(dataset, keys=dataset.keys | keys, client_names=dataset.client_names | names)
    return dataset


def _numbers(text: str, unknown: str, where: str) -> Array:
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    table = np.full(129, len(ALPHABET), np.int8)  # the last for everything behind ASCII
    table[[ord(c) for c in ALPHABET]] = np.arange(len(ALPHABET))
    tokens = table[np.minimum(points, 128)]
    if unknown == "refuse" and (tokens == len(ALPHABET)).any():
        odd = text[int((tokens == len(ALPHABET)).argmax())]
        safe_read.refuse(
            where, f"the character {odd!r} is not among LEAF's 80", "Set unknown = 'extra' to give it a number"
        )
    return tokens
