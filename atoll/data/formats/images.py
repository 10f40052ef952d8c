"""Folders of images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from atoll.data.dataset import Dataset
from atoll.data.decode import Pixels
from atoll.data.formats import safe_read
from atoll.data.formats.client_files import Found
from atoll.data.formats.column_file import Array, absent, memory_database
from atoll.data.formats.csv import CsvReading, csv_table
from atoll.data.formats.label_encoding import Kind, named_clients, targets
from atoll.data.formats.pictures import SUFFIXES, Size, read_images
from atoll.data.formats.split import Share, held_out
from atoll.data.formats.stacked_files import stacked
from atoll.errors import DataError
from atoll.tree import Tree


def images(
    path: Path,
    labels: Path | None = None,
    file: str = "file",
    label: str = "label",
    client: str | tuple[str, ...] = (),
    folders: Literal["class", "client/class"] = "class",
    kind: Kind | None = None,
    size: Size | None = None,
    grey: bool = False,
    test_share: Share = 0.2,
    seed: int = 0,
) -> Dataset:
    """Your own images: a folder for each class, or a folder and a CSV file of `labels` (classes, or ages).

    Without `labels` the images lie in <class>/ or, with folders = "client/class", in <client>/<class>/; both may lie
    in train/ and test/. With `labels`, a CSV file, its column `file` names each image (below `path`), `label` its
    class or number, and `client` who holds it. `size` resizes (one side of a square, or [height, width]); `grey`
    keeps one channel. Without a test/ folder `test_share` of the images (of every class) is held out.
    """
    folder = safe_read.existing_folder(path)
    holders = (client,) if isinstance(client, str) else client
    if labels is not None:
        listing = _by_table(folder, safe_read.existing_file(labels, "labels"), file, label, holders)
    elif kind == "regression":
        raise DataError("data.kind: folders are classes. For numbers such as ages give labels = 'ages.csv'.")
    else:
        listing = _by_folder(folder, 2 if folders == "client/class" else 1)
    y = targets(listing.labels, kind, label if labels else "folder")
    rows = len(listing.paths)
    given = torch.arange(listing.first), torch.arange(listing.first, rows)
    inside, outside = held_out(y.groups, test_share, seed) if listing.first == rows else given
    parts = [None if part is None else listing.columns(part, y.column, size, grey) for part in (inside, outside)]
    keys, names = named_clients({name: who[inside.numpy()] for name, who in listing.holders.items()})
    train, test = parts
    assert train is not None
    shape = tuple(train["x"].shape[1:])
    name = folder.resolve().name
    return Dataset(
        name, y.kind, train, test, shape, y.outputs, Pixels(), keys, classes=y.classes, client_names=names
    ).check()


@dataclass(frozen=True)
class Listing:
    """Image files, what is said of each, and how many of them are for training, if that is known (else all)."""

    paths: Sequence[Path]
    labels: Array
    holders: dict[str, Array]
    first: int

    def columns(self, rows: Tensor, y: Tensor, size: Size | None, grey: bool) -> Tree:
        return {"x": read_images([self.paths[i] for i in rows.tolist()], size, grey), "y": y[rows]}


def _by_folder(folder: Path, depth: int) -> Listing:
    split = (folder / "train").is_dir() and (folder / "test").is_dir()
    paths = _below(folder / "train" if split else folder, depth)
    first = len(paths)
    paths += _below(folder / "test", depth) if split else []
    names = np.array([p.parent.name for p in paths], object)
    holders = {"client": np.array([p.parent.parent.name for p in paths], object)} if depth == 2 else {}
    return Listing(paths, names, holders, first)


def _by_table(folder: Path, path: Path, file: str, label: str, holders: Sequence[str]) -> Listing:
    with memory_database() as base, csv_table(CsvReading(), base, path) as file_:
        table = stacked(Found(path.name, str(path), (path,)), [file_], by_file=False, wanted=())
        for option, name in [("file", file), ("label", label), *(("client", c) for c in holders)]:
            table.need(name, option)
        number = table.holds[label] == "numbers"
        columns = table.read([label] if number else [], [file, *holders, *([] if number else [label])])
    for name, values in columns.items():
        if (empty := absent(values)).any():
            what = f"{int(empty.sum()):,} of {len(values):,} rows have nothing in column {name!r}"
            safe_read.refuse(path, what, "Fill them in, or take those rows out")
    paths = [_inside(folder, name, path, row) for row, name in enumerate(columns[file], 1)]
    return Listing(paths, columns[label], {c: columns[c] for c in holders}, len(paths))


def _below(folder: Path, depth: int) -> list[Path]:
    """The images `depth` folders down, in order."""
    level = "*/" * depth
    paths = sorted(p for p in folder.glob(f"{level}*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if not paths:
        wanted = "<client>/<class>/" if depth == 2 else "<class>/"
        flat = any(p.suffix.lower() in SUFFIXES for p in folder.iterdir())
        advice = "Give labels = 'labels.csv', which tells their classes" if flat else "See to path and folders"
        safe_read.refuse(folder, f"has no images in {wanted}", advice)
    return paths


def _inside(folder: Path, name: str, table: Path, row: int) -> Path:
    path = folder / name
    if not path.is_file():
        guess = (
            safe_read.did_you_mean(path.name, [p.name for p in path.parent.iterdir()]) if path.parent.is_dir() else ""
        )
        safe_read.refuse(
            table, f"row {row} names {name!r}, which {folder} does not have.{guess}", "See to path and file"
        )
    return path
