"""What does not fit in memory is refused as a setting that is too large, not raised as an accident."""

from collections.abc import Iterator
from contextlib import contextmanager

from atoll.data import gib, machine_memory
from atoll.errors import ConfigError

_ALLOCATION = ("allocate memory", "not enough memory", "out of memory", "storage size calculation overflowed")


@contextmanager
def fits_in_memory() -> Iterator[None]:
    """Around what builds a run: a failure to allocate becomes a refusal that names what may be too large."""
    try:
        yield
    except (MemoryError, OverflowError) as e:
        raise _too_large(e) from e
    except RuntimeError as e:  # torch's
        if not any(words in str(e).lower() for words in _ALLOCATION):
            raise
        raise _too_large(e) from e


def _too_large(e: Exception) -> ConfigError:
    what = str(e).partition("\n")[0][:200] or type(e).__name__
    return ConfigError(
        f"experiment: needs more memory than there is ({what}; this machine has {gib(machine_memory())}). "
        "Make smaller what is large: data, cohort.size, local.batch, local.epochs, task.model, or evaluate.rows."
    )
