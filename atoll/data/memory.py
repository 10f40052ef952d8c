"""How much this machine can hold, asked before anything grows to that."""

import os
import sys

from atoll.errors import DataError

SHARE = 4  # what is made from numbers in a file may take a quarter of the machine: rounds need the rest


def machine_memory() -> int:
    """The bytes of this machine's memory; endless where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize


def check_share(count: int, what: str, instead: str) -> None:
    """Refuse to make so many bytes of data."""
    if count > machine_memory() // SHARE:
        raise DataError(
            f"{what}, about {gib(count)}; a quarter of this machine's memory is {gib(machine_memory() // SHARE)}. "
            f"{instead}."
        )


def gib(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB"
