"""What can go wrong, as one tree.

    AtollError
    ├── ConfigError      the experiment file or the arguments cannot be run as written
    │   └── SpecError        transforms and reducer cannot hold together
    ├── DataError        the data cannot be used (empty, not finite, wrong shape)
    │   └── PartitionError   the clients cannot be made as asked
    ├── TrainingError    a round could not be finished
    │   ├── DivergenceError  a client's loss or update stopped being a number
    │   ├── RankError        another process of the run was lost
    │   └── ProtocolError    a protocol between parties could not come to its end
    ├── RecordError      a run folder cannot be read, or must not be written
    ├── WireError        bytes that are no payload, or a payload that cannot be bytes
    └── ConformanceError something registered does not do what its contract says

Every message says where, what, and what instead. `assert` is for our own bugs only.
"""

from collections.abc import Sequence


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


class WireError(AtollError):
    """Bytes that are no payload, or a payload that cannot be encoded as its layout says."""


class ConformanceError(AtollError):
    """Something does not do what its contract says."""
