"""Every dict of builders in one place, by the word that lists it."""

from collections.abc import Callable, Mapping
from typing import Any

from atoll.algorithms import ALGORITHMS, OPTIMIZERS
from atoll.attacks.model import ATTACKS
from atoll.data import DATA, PARTITIONS, SAMPLERS
from atoll.engines import ENGINES
from atoll.protocols import PROTOCOLS
from atoll.reducers import REDUCERS
from atoll.rounds import GRAPHS, ROUNDS
from atoll.schedules import SCHEDULES
from atoll.tasks import LOSSES
from atoll.tasks.models import MODELS
from atoll.transforms import TRANSFORMS

Registry = Mapping[str, Callable[..., Any]]

CATALOGUE: dict[str, Registry] = {
    "algorithms": ALGORITHMS,
    "optimizers": OPTIMIZERS,  # type: ignore[dict-item]
    "schedules": SCHEDULES,
    "transforms": TRANSFORMS,
    "reducers": REDUCERS,
    "protocols": PROTOCOLS,
    "models": MODELS,
    "losses": LOSSES,
    "data": DATA,
    "partitions": PARTITIONS,
    "cohorts": SAMPLERS,  # type: ignore[dict-item]
    "engines": ENGINES,
    "rounds": ROUNDS,
    "graphs": GRAPHS,
    "attacks": ATTACKS,
}

# Arguments that come from the program: never shown, never accepted from a file.
GIVEN: dict[str, frozenset[str]] = {
    "algorithms": frozenset({"task", "population", "public", "largest_client"}),
    "models": frozenset({"inputs", "outputs"}),
    "losses": frozenset({"targets", "outputs"}),
    "reducers": frozenset({"population", "client_names"}),
    "rounds": frozenset({"population", "client_names", "client_groups", "numbers"}),
    "protocols": frozenset({"bits", "threshold", "insecure_seed"}),
}
