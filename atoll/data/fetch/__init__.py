"""Getting real data: found, verified, kept, read. Nothing that is fetched is installed or run."""

from atoll.data.fetch.cache import cache
from atoll.data.fetch.fetch import fetch
from atoll.data.fetch.files import Files, tarred
from atoll.data.fetch.parsed_cache import ParsedColumns, cached_state, parsed_columns
from atoll.data.fetch.recipe import Download, Offer, Package, Recipe

__all__ = [
    "Download",
    "Files",
    "Offer",
    "Package",
    "ParsedColumns",
    "Recipe",
    "cache",
    "cached_state",
    "fetch",
    "parsed_columns",
    "tarred",
]
