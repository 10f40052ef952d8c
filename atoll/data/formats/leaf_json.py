"""LEAF's JSON files: users, num_samples and user_data = {user: {x, y}}; a folder train/ and a folder test/ of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from atoll import tree
from atoll.data.arrays import Kind
from atoll.data.dataset import Dataset
from atoll.data.formats import safe_read
from atoll.data.formats.label_encoding import matched, named_clients
from atoll.data.formats.split import held_out
from atoll.tree import Tree

Array = NDArray[Any]
Convert = Callable[[list[Any], list[Any], str], tuple[Array, Array]]  # x, y, where -> rows of both


@dataclass(frozen=True)
class LeafExamples:
    """The examples of many users, one below the other, and whose each is."""

    x: Array
    y: Array
    user: Array
    group: Array  # what LEAF calls the hierarchy (the play of a role), None where there is none

    def rows(self, index: Tensor) -> LeafExamples:
        i = index.numpy()
        return LeafExamples(self.x[i], self.y[i], self.user[i], self.group[i])


def read_leaf(
    path: Path, convert: Convert, share: float, seed: int, counted: bool = True
) -> tuple[LeafExamples, LeafExamples | None]:
    """Training and test examples; without a test/ folder `share` of every user's are held out.

    `counted`: num_samples must be what is there (Reddit's files count comments of all parts).
    """
    train, test = _sources(path.expanduser())
    examples = _part(train, convert, counted)
    if test:
        return examples, _part(test, convert, counted)
    inside, outside = held_out(matched(examples.user, None)[0], share, seed)
    return examples.rows(inside), None if outside is None else examples.rows(outside)


def leaf_dataset(
    name: str,
    kind: Kind,
    parts: tuple[LeafExamples, LeafExamples | None],
    columns: Callable[[LeafExamples], Tree],
    outputs: int,
    decode: Callable[[Tree], Tree],
    vocabulary: int | None = None,
) -> Dataset:
    """The data set with the natural key "user"; the test column "user" numbers them alike."""
    train, test = parts
    inside, outside = columns(train), None if test is None else columns(test)
    here, there = matched(train.user, None if test is None else test.user)
    if outside is not None and there is not None:
        outside["user"] = there
    inputs = tuple(decode(tree.rows(inside, slice(0, 1)))["x"].shape[1:])
    keys, names = {"user": here}, named_clients({"user": train.user})[1]
    held = (inside, outside, inputs, outputs, decode, keys)
    return Dataset(name, kind, *held, vocabulary=vocabulary, client_names=names).check()


def leaf_numbers(values: list[Any], where: str) -> Array:
    try:
        array = np.array(values, np.float64)
    except (ValueError, TypeError):
        safe_read.refuse(where, "x or y is not an even list of numbers", "Use the files that LEAF's scripts write")
    if not np.isfinite(array).all():
        safe_read.refuse(where, "has numbers that are not finite", "Write them again")
    return array


def leaf_classes(values: list[Any], count: int, where: str) -> NDArray[np.int64]:
    """Labels 0..count - 1."""
    labels = leaf_numbers(values, where)
    if labels.ndim != 1 or (labels != np.rint(labels)).any() or labels.min() < 0 or labels.max() >= count:
        safe_read.refuse(
            where, f"has labels that are none of 0..{count - 1}", "Use the files that LEAF's scripts write"
        )
    return labels.astype(np.int64)


def _sources(path: Path) -> tuple[list[Path], list[Path]]:
    """The files of the training part and of the test part."""
    if path.is_file():
        return [path], []
    folder = safe_read.existing_folder(path)
    if not (folder / "train").is_dir() and (folder / "data").is_dir():
        folder = folder / "data"
    if (folder / "train").is_dir():
        return _json(folder / "train"), _json(folder / "test") if (folder / "test").is_dir() else []
    return _json(folder / "all_data" if (folder / "all_data").is_dir() else folder), []


def _json(folder: Path) -> list[Path]:
    paths = sorted(p for p in folder.iterdir() if p.name.endswith((".json", ".json.gz")))
    if not paths:
        safe_read.refuse(folder, "has no .json files", "Set path to LEAF's data/ folder, with train/ and test/ in it")
    return paths


def _part(paths: Sequence[Path], convert: Convert, counted: bool) -> LeafExamples:
    xs, ys, users, groups, sizes = [], [], [], [], []
    for path in paths:
        for user, group, data in _users(path, counted):
            where = f"{path}, user {user!r}"
            x, y = _lists(data, where)
            if not x:
                continue
            rows = convert(x, y, where)
            xs.append(rows[0])
            ys.append(rows[1])
            users.append(user)
            groups.append(group)
            sizes.append(len(rows[0]))
    if len(set(users)) < len(users):
        twice = next(u for i, u in enumerate(users) if u in users[:i])
        safe_read.refuse(paths[0].parent, f"has user {twice!r} twice", "Give each user one entry in one file")
    if not sum(sizes):
        safe_read.refuse(paths[0].parent, "has no examples", "Run LEAF's preprocess.sh with a larger sample")
    for name, columns in (("x", xs), ("y", ys)):
        if len(shapes := sorted({column.shape[1:] for column in columns})) > 1:
            what = f"{name} has rows of different shapes ({shapes[0]}, {shapes[1]})"
            safe_read.refuse(paths[0].parent, what, "Make them alike")
    return LeafExamples(np.concatenate(xs), np.concatenate(ys), _each(users, sizes), _each(groups, sizes))


def _users(path: Path, counted: bool) -> Iterator[tuple[str, str | None, Any]]:
    content = safe_read.read_json(path)
    wanted = ("users", "num_samples", "user_data")
    if not isinstance(content, dict) or any(name not in content for name in wanted):
        safe_read.refuse(path, f"is not LEAF's JSON, which has {', '.join(wanted)}", "Run LEAF's preprocess.sh")
    users, counts, data = (content[name] for name in wanted)
    lists = isinstance(users, list) and isinstance(counts, list) and isinstance(data, dict)
    if not lists or not all(isinstance(user, str) for user in users):
        what = "users is no list of names, num_samples no list, or user_data no table by name"
        safe_read.refuse(path, what, "Use the files that LEAF's scripts write")
    if len(users) != len(counts):
        safe_read.refuse(path, f"has {len(users)} users and {len(counts)} num_samples", "Write it again")
    groups = content.get("hierarchies", [])
    # LEAF's split by sample drops users with too few examples, but not their hierarchies: then nothing is known.
    groups = groups if isinstance(groups, list) and len(groups) == len(users) else [None] * len(users)
    for user, count, group in zip(users, counts, groups, strict=True):
        if user not in data:
            safe_read.refuse(path, f"lists user {user!r}, who has no user_data", "Write it again")
        if counted and (there := _examples(data[user])) not in (count, None):
            what = f"user {user!r} has {there} examples, and num_samples says {count}"
            safe_read.refuse(path, what, "It is damaged or was edited: write it again")
        yield user, group, data[user]


def _examples(data: Any) -> int | None:
    """How many a user has; None where y is no list, which is refused when they are read."""
    y = data.get("y", []) if isinstance(data, dict) else None
    return len(y) if isinstance(y, list) else None


def _lists(data: Any, where: str) -> tuple[list[Any], list[Any]]:
    if not isinstance(data, dict) or not all(isinstance(data.get(name), list) for name in "xy"):
        safe_read.refuse(where, "has no lists x and y", "Use the files that LEAF's scripts write")
    if len(data["x"]) != len(data["y"]):
        safe_read.refuse(where, f"has {len(data['x'])} x and {len(data['y'])} y", "Write it again")
    return data["x"], data["y"]


def _each(names: list[Any], sizes: list[int]) -> Array:
    repeated = np.empty(len(names), object)
    repeated[:] = names
    return np.repeat(repeated, sizes)
