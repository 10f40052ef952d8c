"""What an algorithm needs that a round may not have: one place for all data, one server that knows all clients."""

from __future__ import annotations

from atoll.core import Algorithm
from atoll.errors import ConfigError

OTHERS = "or an algorithm such as fedavg or fedprox"


def check_needs(algorithm: Algorithm, pooled: str, counted: str | None = None) -> None:
    """A ConfigError for one that pools all data, or keeps a mean over all clients on the server.

    `pooled`, `counted`: how the sentence ends, with what to do instead; None: this round can keep that mean.
    """
    name, traits = type(algorithm).__name__, algorithm.traits()
    if traits.pooled:
        raise ConfigError(f"round.name: {name} trains on all data in one place, {pooled}")
    if traits.counts_clients and counted is not None:
        raise ConfigError(f"round.name: {name} keeps the mean of all clients' states on the server, {counted}")
