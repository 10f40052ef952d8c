"""Getting real data: found, verified, kept, read. Nothing that is fetched is installed or run."""

from atoll.data.fetch.cache import cache
from atoll.data.fetch.fetch import fetch
from atoll.data.fetch.files import Files, tarred
from atoll.data.fetch.parsed_cache import Columns, cached_state, parsed_columns
from atoll.data.fetch.recipe import Download, Offer, Package, Recipe

__all__ = [
    "Columns",
    "Download",
    "Files",
    "Offer",
    "Package",
    "Recipe",
    "cache",
    "cached_state",
    "fetch",
    "parsed_columns",
    "tarred",
]
