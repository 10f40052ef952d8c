"""Reading what was fetched: archives are opened, never unpacked, and nothing in them is run."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from atoll.data.fetch.recipe import Download, Offer
from atoll.errors import DataError

_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError)


@dataclass(frozen=True)
class Files:
    """The files of one offer, all verified. Names are relative to each download's root."""

    offer: Offer
    paths: dict[str, Path]  # by the download's file name
    origin: str  # "the cache ...", for people

    @property
    def layout(self) -> str:
        """How the files are laid out: which of the parser's branches applies."""
        return self.offer.layout

    def read(self, name: str) -> bytes:
        return self.every((name,))[name]

    def every(self, names: tuple[str, ...] | None = None) -> dict[str, bytes]:
        """Several whole files (all that the offer needs unless told), in one pass over the archive."""
        wanted = self.offer.needs if names is None else names
        contents = dict(self.each(lambda n: n in wanted))
        missing = sorted(set(wanted) - set(contents))
        if missing:
            raise DataError(f"{self.origin}: has no {missing[0]!r}. Remove it and fetch it again.")
        return contents

    def each(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
        """Name and content of every wanted file, in the order in which they lie there."""
        for download in self.offer.downloads:
            path = self.paths[download.file]
            try:
                yield from _members(path, download, wanted)
            except _DAMAGED as e:
                what = str(e).partition("\n")[0].rstrip(":") or type(e).__name__
                raise DataError(f"{path}: cannot be read ({what}). Remove it and fetch it again.") from e


def _members(path: Path, download: Download, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    if path.name.endswith((".whl", ".zip")):
        yield from _zipped(path, download.root, wanted)
    elif path.name.endswith((".tar.gz", ".tgz", ".tar")):
        with path.open("rb") as file:
            yield from tarred(file, download.root, wanted)
    elif wanted(download.file):
        yield download.file, path.read_bytes()


def _zipped(path: Path, root: str, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            name = inside(info.filename, root)
            if name and not info.is_dir() and wanted(name):
                yield name, archive.read(info)


def tarred(file: IO[bytes], root: str, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """The wanted plain files of a tar archive below `root`; links, devices and the like are passed over."""
    with tarfile.open(fileobj=file, mode="r:*") as archive:
        for info in archive:
            name = inside(info.name, root)
            if name and info.isreg() and wanted(name):
                content = archive.extractfile(info)
                if content is not None:
                    yield name, content.read()


def inside(name: str, root: str) -> str | None:
    """The name relative to `root`, or None if it lies elsewhere; names that climb out of an archive are refused.

    >>> inside("package/data/x.csv", "package/"), inside("other/x.csv", "package/")
    ('data/x.csv', None)
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in "".join(path.parts[:1]):
        raise DataError(f"archive member {name!r}: points outside its archive. Do not use this file.")
    return name.removeprefix(root) if name.startswith(root) else None
