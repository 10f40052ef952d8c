"""What can go wrong, as one tree.

    AtollError
    ├── ConfigError      the experiment file or the arguments cannot be run as written
    │   └── SpecError        transforms and reducer cannot hold together
    ├── DataError        the data cannot be used (empty, not finite, wrong shape)
    │   ├── PartitionError   the clients cannot be made as asked
    │   └── UnforeseenError  a file made its reader fail in a way that nobody foresaw
    ├── TrainingError    a round could not be finished
    │   ├── DivergenceError  a client's loss or update stopped being a number
    │   ├── RankError        another process of the run was lost
    │   └── ProtocolError    a protocol between parties could not come to its end
    ├── RecordError      a run folder cannot be read, or must not be written
    │   └── BusyError        another process is at work in it
    ├── WireError        bytes that are no payload, or a payload that cannot be bytes
    └── ConformanceError something registered does not do what its contract says

Every message says where, what, and what instead. `assert` is for our own bugs only.
"""

import builtins
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self


class AtollError(ValueError):
    """Anything the user can put right."""


class ConfigError(AtollError):
    """The experiment cannot be run as written; `problems` lists every reason, not only the first."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class SpecError(ConfigError):
    """A chain of transforms and a reducer that cannot hold together."""


class DataError(AtollError):
    """Data that cannot be used."""


class PartitionError(DataError):
    """Clients that cannot be made as asked."""


class Accident(NamedTuple):
    """An error that nobody foresaw: its type, what it says, and the line that raised it."""

    error: str
    what: str
    place: str

    @classmethod
    def of(cls, e: Exception) -> Self:
        frame = traceback.extract_tb(e.__traceback__)[-1]
        return cls(type(e).__name__, str(e).strip().partition("\n")[0][:200], f"{frame.filename}:{frame.lineno}")

    @property
    def ours(self) -> bool:
        """Whether a line of atoll itself raised one of Python's errors; others' parsers have their own."""
        known = vars(builtins).get(self.error)
        inside = Path(self.place).is_relative_to(Path(__file__).parent)
        return inside and known is not None and not issubclass(known, MemoryError | OSError)


class UnforeseenError(DataError):
    """A file that made its reader fail in a way that nobody foresaw: it is damaged, or the reader is wrong."""

    def __init__(self, message: str, accident: Accident) -> None:
        self.accident = accident
        super().__init__(message)

    def __reduce__(self) -> tuple[type[Self], tuple[str, Accident]]:
        """It travels between processes whole."""
        return type(self), (str(self), self.accident)


class TrainingError(AtollError):
    """A round that could not be finished."""


class DivergenceError(TrainingError):
    """A client's loss or update stopped being a number."""


class RankError(TrainingError):
    """Another process of the run was lost."""


class ProtocolError(TrainingError):
    """A protocol that could not come to its end: too many dropped out, or somebody did not keep to it."""


class RecordError(AtollError):
    """A run folder that cannot be read, or must not be written."""


class BusyError(RecordError):
    """Another process is at work in the folder."""


class WireError(AtollError):
    """Bytes that are no payload, or a payload that cannot be encoded as its layout says."""


class ConformanceError(AtollError):
    """Something does not do what its contract says."""
