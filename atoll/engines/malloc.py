"""The C allocator, told to keep what it has: buffers that go back to the system are faulted in again each step."""

import ctypes
import functools
import sys

_TRIM, _TOP_PAD, _MMAP = -1, -2, -3
KEPT_BYTES = 32 << 20  # what is larger goes back to the system when freed: glibc's highest bound


@functools.cache
def keep_buffers() -> bool:
    """Let glibc reuse freed memory instead of returning it; True where that could be done."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    set_all = [mallopt(_MMAP, KEPT_BYTES), mallopt(_TRIM, (1 << 31) - 1), mallopt(_TOP_PAD, 64 << 20)]
    return all(set_all)
