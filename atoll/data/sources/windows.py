"""Windows over the text of each client, for models that guess what comes next."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from atoll.data.dataset import IGNORE, Dataset
from atoll.data.fetch import ParsedColumns
from atoll.data.sources.decoders import Tokens
from atoll.errors import DataError
from atoll.rng import host
from atoll.tree import Tree

Targets = Literal["last", "all"]
Ints = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Texts:
    """The tokens of each client, in order: client c has flat[offsets[c] : offsets[c + 1]]."""

    flat: Ints
    offsets: Ints

    @classmethod
    def joined(cls, texts: list[Ints]) -> "Texts":
        offsets = np.cumsum([0, *(len(t) for t in texts)])
        return cls(np.concatenate(texts) if texts else np.empty(0, np.int8), offsets)

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)

    def rows(self, window: int, stride: int, targets: Targets) -> tuple[Tree, Ints]:
        """Columns x (n, window) and y, and whose each row is; no window crosses from one client to the next.

        "last": y (n,) is the token after the window. "all": y (n, window) is x one token on, -100 behind the end.
        """
        whole = window if targets == "last" else 1  # how much of a window must be text
        count = np.maximum(0, (self.lengths - whole - 1) // stride + 1)
        owner, place = host.group_positions(count)
        start = self.offsets[owner] + place * stride
        padded = np.concatenate([self.flat, np.zeros(window + 1, self.flat.dtype)])
        x = np.lib.stride_tricks.sliding_window_view(padded, window)[start]
        if targets == "last":
            return _columns(x, padded[start + window].astype(np.int64)), owner
        y = np.lib.stride_tricks.sliding_window_view(padded, window)[start + 1]
        left = (self.offsets[owner + 1] - start)[:, None] - np.arange(window)  # tokens from here to the client's end
        return _columns(
            np.where(left > 0, x, 0).astype(x.dtype), np.where(left > 1, y, IGNORE).astype(_signed(y))
        ), owner


def next_tokens(
    name: str,
    cached: ParsedColumns,
    key: str,
    vocabulary: int,
    targets: Targets,
    window: int,
    stride: int | None,
    names: Sequence[str] = (),
) -> Dataset:
    """The data set of cached texts: training and test part of every client, cut into windows.

    `names`: of all clients, also of those with too little text for a window.
    """
    step = stride or (1 if targets == "last" else window)
    parts = [Texts(cached.arrays[part], cached.arrays[f"{part}_offsets"]) for part in ("train", "test")]
    (train, owner), (test, _) = (p.rows(window, step, targets) for p in parts)
    if not len(owner) or not len(test["x"]):
        raise DataError(f"data {name!r}, window: no client has {window + 1} tokens in both parts. Use a smaller one.")
    there, clients = np.unique(owner, return_inverse=True)
    kind: Literal["classification", "next_token"] = "classification" if targets == "last" else "next_token"
    data = Dataset(name, kind, train, test, (window,), vocabulary, Tokens(), {key: torch.from_numpy(clients)})
    client_names = {key: tuple(names[i] for i in there)} if names else {}
    return replace(data, vocabulary=vocabulary, fitted="vocabulary", client_names=client_names).check()


def stored(train: list[Ints], test: list[Ints]) -> dict[str, Ints]:
    """Both parts of every client's text as the columns that `next_tokens` reads."""
    learned, held = Texts.joined(train), Texts.joined(test)
    ends = {"train_offsets": learned.offsets, "test_offsets": held.offsets}
    return {"train": learned.flat, "test": held.flat, **ends}


def split_texts(texts: list[Ints], share: float = 0.8) -> tuple[list[Ints], list[Ints]]:
    """The beginning and the rest of each text: what is tested comes after what is learned, as in LEAF."""
    at = [round(share * len(t)) for t in texts]
    return [t[:a] for t, a in zip(texts, at, strict=True)], [t[a:] for t, a in zip(texts, at, strict=True)]


def _columns(x: Ints, y: Ints) -> Tree:
    return {"x": torch.from_numpy(np.ascontiguousarray(x)), "y": torch.from_numpy(np.ascontiguousarray(y))}


def _signed(like: Ints) -> np.dtype[Any]:
    return like.dtype if like.dtype.kind == "i" else np.dtype(np.int16)
