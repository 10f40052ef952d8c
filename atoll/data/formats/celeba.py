"""CelebA, as LEAF writes it: names of image files by celebrity."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from atoll.data.dataset import Dataset
from atoll.data.decode import Pixels
from atoll.data.formats import safe_read
from atoll.data.formats.leaf_json import Array, LeafExamples, leaf_classes, leaf_dataset, read_leaf
from atoll.data.formats.pictures import Size, read_images
from atoll.data.formats.split import Share
from atoll.tree import Tree


def celeba(
    path: Path,
    images: Path,
    attributes: Path | None = None,
    attribute: str = "Smiling",
    size: Size = 84,
    test_share: Share = 0.1,
    seed: int = 0,
) -> Dataset:
    """CelebA in LEAF's JSON: faces, smiling or not; natural clients by "user", the celebrity.

    `path` holds train/ and test/ with LEAF's files, or is one file; `images` is the folder img_align_celeba. LEAF's
    labels are whether someone smiles; with `attributes`, the file list_attr_celeba.txt, any other `attribute` can be
    learned. Images are resized to `size` (LEAF: 84). Liu et al. (2015); Caldas et al. (2018),
    https://arxiv.org/abs/1812.01097.
    """
    folder = safe_read.existing_folder(images, "images")
    marks = (
        None if attributes is None else read_attributes(safe_read.existing_file(attributes, "attributes"), attribute)
    )
    if marks is None and attribute != "Smiling":
        what = f"is missing, and LEAF's files do not have {attribute!r}"
        safe_read.refuse("data.attributes", what, "Name the file list_attr_celeba.txt")

    def convert(x: list[Any], y: list[Any], where: str) -> tuple[Array, Array]:
        names = np.array([str(name) for name in x], object)
        if marks is None:
            return names, leaf_classes(y, 2, where)
        absent = [n for n in names if n not in marks]
        if absent:
            safe_read.refuse(
                where, f"image {absent[0]!r} is not in the file of attributes", "Use the files of one release"
            )
        return names, np.array([marks[n] for n in names], np.int64)

    def columns(part: LeafExamples) -> Tree:
        paths = [folder / name for name in part.x]
        absent = next((p for p in paths if not p.is_file()), None)
        if absent is not None:
            safe_read.refuse(folder, f"has no {absent.name}", "Set images to the folder img_align_celeba")
        return {"x": read_images(paths, size, grey=False), "y": torch.from_numpy(part.y)}

    parts = read_leaf(path, convert, test_share, seed)
    return leaf_dataset("celeba", "classification", parts, columns, 2, Pixels())


def read_attributes(path: Path, attribute: str) -> dict[str, int]:
    """1 or 0 for each image: a count, the names of the attributes, then a line of -1 and 1 for each image."""
    rows = safe_read.numbered_lines(path)
    count = next(rows, (1, ""))[1].strip()
    names = next(rows, (2, ""))[1].split()
    if not count.isdecimal() or not names:
        safe_read.refuse(
            path, "does not begin with a count and a line of names", "Use the original list_attr_celeba.txt"
        )
    if attribute not in names:
        guess = safe_read.did_you_mean(attribute, names)
        what = f"{path.name} has no {attribute!r}.{guess} It has {safe_read.list_names(names, 40)}"
        safe_read.refuse("data.attribute", what, "Name one of these")
    place, marks_of = names.index(attribute), {}
    for number, line in rows:
        image, *marks = line.split() or [""]
        if image and (len(marks) != len(names) or marks[place] not in ("-1", "1")):
            safe_read.refuse(path, f"line {number} has not {len(names)} marks of -1 or 1", "Fetch it again")
        if image:
            marks_of[image] = int(marks[place] == "1")
    if len(marks_of) != int(count):
        safe_read.refuse(
            path, f"says {int(count):,} images and lists {len(marks_of):,}", "It is cut short: fetch it again"
        )
    return marks_of
