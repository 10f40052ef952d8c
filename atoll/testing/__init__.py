"""The conformance kit: does an algorithm, a transform, a reducer, an engine or a partitioner do what its contract says?

Each check returns the names of what was passed, or raises a ConformanceError that says which property failed, what was
found, what was expected, and what usually causes it.

>>> from atoll.testing import check_algorithm
>>> from atoll.algorithms import FedProx
>>> for name in check_algorithm(FedProx, mu=0.1): print(name)  # doctest: +ELLIPSIS
declares its traits, and wrappers keep them
hooks are pure and keep the structure of every state
a vanishing lr moves nothing
...
"""

from atoll.testing.algorithm import check_algorithm
from atoll.testing.attack import check_attack
from atoll.testing.claims import CLAIMS
from atoll.testing.engine import check_engine
from atoll.testing.kinds import check_anything
from atoll.testing.model import check_model
from atoll.testing.partition import check_partition
from atoll.testing.protocol import check_protocol
from atoll.testing.reducer import check_reducer
from atoll.testing.round import BATCH_NORM, check_round, check_transforms
from atoll.testing.round_fixture import KNOWLEDGE_TRANSFER, RoundFixture
from atoll.testing.sampler import check_sampler
from atoll.testing.traits import check_wrapper
from atoll.testing.transform import check_transform
from atoll.testing.worker_messages import check_worker

__all__ = [
    "BATCH_NORM",
    "CLAIMS",
    "KNOWLEDGE_TRANSFER",
    "RoundFixture",
    "check_algorithm",
    "check_anything",
    "check_attack",
    "check_engine",
    "check_model",
    "check_partition",
    "check_protocol",
    "check_reducer",
    "check_round",
    "check_sampler",
    "check_transform",
    "check_transforms",
    "check_worker",
    "check_wrapper",
]
