"""What a round is checked with: a problem, what learns it, and the round made for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from atoll.algorithms import FedAvg, FedGKT
from atoll.core import Algorithm, Chain, Round
from atoll.rounds import KnowledgeTransfer
from atoll.testing.problems import Problem, features, network, quadratics


def _as_it_is(round: Round, algorithm: Algorithm, chain: Chain, problem: Problem) -> Round:
    return round


@dataclass(frozen=True)
class RoundFixture:
    """Six clients of FedAvg, unless a round can only be made around another algorithm and its model."""

    problem: Callable[[], Problem] = network
    to_rest: Callable[[], Problem] = quadratics  # on which training must come to rest
    algorithm: Callable[[Problem, float], Algorithm] = lambda problem, lr: FedAvg(problem.task, lr)
    around: Callable[[Round, Algorithm, Chain, Problem], Round] = _as_it_is


def _fedgkt(problem: Problem, lr: float) -> Algorithm:
    return FedGKT(problem.task, lr, int(problem.partition.sizes.max()), tower_lr=0.5)


def _knowledge_transfer(round: Round, algorithm: Algorithm, chain: Chain, problem: Problem) -> Round:
    return KnowledgeTransfer.around(round, algorithm, chain, problem.partition.sizes, problem.batch, None)


AVERAGED = RoundFixture()
KNOWLEDGE_TRANSFER = RoundFixture(features, features, _fedgkt, _knowledge_transfer)
