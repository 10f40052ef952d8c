"""Downloads from an address: resumed where the server allows it."""

from __future__ import annotations

import urllib.request
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError

from atoll.data.fetch.fetch_progress import bar

_BLOCK = 1 << 18
_SECONDS = 20.0  # without a byte


def download(address: str, to: Path, title: str) -> None:
    """Write what is at the address into `to`, going on where an earlier try was cut off. OSError if that fails."""
    have = to.stat().st_size if to.exists() else 0
    request = urllib.request.Request(address, headers={"User-Agent": "atoll"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as reply:
            resumed = have > 0 and getattr(reply, "status", None) == 206
            length = reply.headers.get("Content-Length")
            total = None if length is None else int(length) + (have if resumed else 0)
            with to.open("ab" if resumed else "wb") as file, bar(title, total, have if resumed else 0) as advance:
                while block := reply.read(_BLOCK):
                    file.write(block)
                    advance(len(block))
    except HTTPError as e:
        if e.code == 416 and have:  # nothing behind what is there: it is complete, or of another file
            return
        raise OSError(f"answered {e.code} ({e.reason})") from e
    except HTTPException as e:
        raise OSError(f"broke off ({type(e).__name__})") from e
    size = to.stat().st_size
    if total is not None and size < total:
        raise OSError(f"broke off after {size:,} of {total:,} bytes")
