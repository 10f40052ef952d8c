"""What a parser made of a recipe's files, kept as plain arrays that load at once.

Each array is an .npy file without pickles, mapped into memory when it is used; a manifest holds its SHA-256. A folder
that is damaged is made again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.data.fetch.cache import (
    cache,
    cache_folder,
    check_disk_space,
    exclusive,
    remove_leftovers,
    sha256,
    temporary_folder,
    unwritable,
)
from atoll.data.fetch.fetch import fetch
from atoll.data.fetch.recipe import Recipe
from atoll.errors import DataError

Array = NDArray[Any]


@dataclass(frozen=True)
class ParsedColumns:
    """Arrays by name, and notes that fit in JSON (class names, a vocabulary)."""

    arrays: dict[str, Array]
    notes: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        return torch.from_numpy(self.arrays[name])


Parse = Callable[..., ParsedColumns]  # (files, **options)


def parsed_columns(
    recipe: Recipe, parse: Parse, folder: str | None = None, version: int = 1, **options: Any
) -> ParsedColumns:
    """The columns of a recipe under these options: from the cache, or parsed now and kept.

    `version` is the parser's: a new one makes the columns again. The pinned hashes are part of the name as well.
    """
    place = cache() / "columns" / _name(recipe, version, options)
    loaded = _load(place)
    if loaded is not None:
        return loaded
    files = fetch(recipe, folder)
    with exclusive(place.name + ".lock"):
        loaded = _load(place)  # another process may have made them meanwhile
        if loaded is None:
            _save(parse(files, **options), place)
            loaded = _load(place)
    if loaded is None:
        raise DataError(f"{place}: cannot be read back. Look at the disk, or set ATOLL_DATA to another one.")
    return loaded


def cached_state(recipe: Recipe) -> str:
    """What the cache has of it: "ready" (parsed), "fetched", or "" for nothing."""
    if any((cache() / "columns").glob(f"{recipe.name}-*/manifest.json")):
        return "ready"
    here = cache() / "files"
    return "fetched" if any(all((here / d.kept_as).exists() for d in o.downloads) for o in recipe.offers) else ""


def _name(recipe: Recipe, version: int, options: dict[str, Any]) -> str:
    hashes = [d.sha256 for offer in recipe.offers for d in offer.downloads]
    what = json.dumps([version, hashes, options], sort_keys=True)
    return f"{recipe.name}-{hashlib.blake2b(what.encode(), digest_size=8).hexdigest()}"


def _save(parsed: ParsedColumns, place: Path) -> None:
    remove_leftovers(cache_folder("columns"))
    check_disk_space(place.parent, sum(a.nbytes for a in parsed.arrays.values()) / 1e6)
    with temporary_folder(place.parent) as folder:
        try:
            hashes = {}
            for name, array in parsed.arrays.items():
                np.save(folder / f"{name}.npy", np.ascontiguousarray(array), allow_pickle=False)
                hashes[name] = sha256(folder / f"{name}.npy")
            body = {"arrays": hashes, "notes": parsed.notes}
            text = json.dumps({**body, "digest": _digest(body)})
            (folder / "manifest.json").write_text(text, encoding="utf-8")
            shutil.rmtree(place, ignore_errors=True)
            folder.replace(place)
        except OSError as e:
            raise unwritable(e) from e


def _load(place: Path) -> ParsedColumns | None:
    """What was saved, or None if it is not there or not as it was written."""
    try:
        body = json.loads((place / "manifest.json").read_text(encoding="utf-8"))
        if body.pop("digest", None) != _digest(body):
            return None
        if any(sha256(place / f"{name}.npy") != pinned for name, pinned in body["arrays"].items()):
            return None
        return ParsedColumns({name: _mapped(place / f"{name}.npy") for name in body["arrays"]}, body["notes"])
    except (OSError, ValueError):
        return None


def _mapped(path: Path) -> Array:
    """The array as it lies on the disk; copy-on-write, because torch wants memory it may write to."""
    try:
        return np.asarray(np.load(path, mmap_mode="c", allow_pickle=False))
    except ValueError:  # nothing can be mapped where there is nothing
        return np.asarray(np.load(path, allow_pickle=False))


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
