"""The topology, and what goes around it."""

from __future__ import annotations

from atoll.algorithms import Statistics
from atoll.core import Algorithm, Chain, Model, Round
from atoll.errors import ConfigError
from atoll.experiment.experiment import Experiment
from atoll.experiment.registry import build
from atoll.rounds import Averaged, CompressedBroadcast, Recompute
from atoll.tasks import Supervised
from atoll.transforms import TRANSFORMS


def around(experiment: Experiment, round: Round, task: Supervised, model: Model, algorithm: Algorithm) -> Round:
    """The topology, with what goes around it: a second pass for BatchNorm's statistics, an average of models."""
    if model["buffers"] and experiment.task.batch_norm == "recompute":
        round = Recompute.around(round, Statistics(task), model["buffers"])
    if experiment.broadcast:
        codecs = [build(TRANSFORMS, t, where=f"broadcast.{i}") for i, t in enumerate(experiment.broadcast)]
        round = CompressedBroadcast.around(round, codecs)
    decay = None if experiment.server is None else experiment.server.ema
    return round if decay is None else Averaged.around(round, decay, algorithm)


def check_told(round: Round, chain: Chain, private: bool) -> None:
    """What clients say beside their updates has no noise on it."""
    told = round.traits().tells
    if told is not None and (private or chain.mechanisms()):
        raise ConfigError(
            f"round.name: in this round a client tells the server {told}, which noise on its updates or gradients does "
            "not cover: there is no epsilon. Leave the noise out, or use round.name = 'central'."
        )
