"""Does a round do what its contract says: pure, whole, and with both halves of every transform?"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.algorithms import Statistics, keep_statistics_local
from atoll.core import (
    Algorithm,
    Chain,
    Evaluate,
    Exchange,
    Outcome,
    Reducer,
    Round,
    Spec,
    Total,
    Train,
    Transform,
    Update,
)
from atoll.engines import cpu_threads
from atoll.errors import ConfigError
from atoll.reducers import Mean
from atoll.rounds import Recompute
from atoll.runs import on_promises
from atoll.testing.assertions import need, need_close, need_same, need_shape
from atoll.testing.harness import EngineFactory, Federation, federation, stack
from atoll.testing.problems import Problem
from atoll.testing.round_fixture import AVERAGED, RoundFixture
from atoll.tree import Tree

Transforms = Sequence[Transform]
_IDS = (4, 0, 3, 5, 1)


@dataclass(frozen=True)
class Marker(Transform):
    """Four times as much on the way in, a quarter on the way back: nothing may change but the last bits.

    It counts its server side in its state.
    """

    keyed: ClassVar[bool] = False
    allowed_after_noise: ClassVar[bool] = True

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        return self, spec

    def init(self, like: Tree) -> tuple[Tree, Tree]:
        return {"calls": torch.zeros(())}, {}

    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        return update._replace(value=tree.scale(update.value, 4.0)), own

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        return replace(total, value=tree.scale(total.value, 0.25)), {"calls": state["calls"] + 1}


@cpu_threads(1)
def check_round(
    round: Round, chains: Mapping[str, Transforms] | None = None, fixture: RoundFixture = AVERAGED
) -> list[str]:
    """The names of the checks that a round passes, or a ConformanceError that says which one it does not.

    `chains` are transforms that must come through whole, beside none at all; those that the round refuses (SpecError,
    ConfigError) are passed over. `fixture`: who trains what in it, where FedAvg cannot.

    >>> from atoll.rounds import Gossip
    >>> "both halves of every transform" in check_round(Gossip())
    True
    """
    names = [check(round, fixture) for check in CHECKS]
    all_chains: dict[str, Transforms] = {"no transform": (), **(chains or {})}
    ran = [check_transforms(round, transforms, name, fixture=fixture) for name, transforms in all_chains.items()]
    return [*names, "both halves of every transform" if any(ran) else "refuses transforms, with advice"]


def check_transforms(
    round: Round,
    transforms: Transforms,
    name: str,
    reducer: Reducer[Any] | None = None,
    policy: str = "average",
    engine: EngineFactory = stack,
    fixture: RoundFixture = AVERAGED,
) -> bool:
    """Is the server's half of these transforms run, and its state kept? False where the round refuses them.

    `policy` is one of `BATCH_NORM`: what becomes of the model's statistics.
    """
    ends = []
    for more in ((), (Marker(),)):
        try:
            made = _made(round, fixture, Chain((*transforms, *more)), reducer, policy, engine)
        except ConfigError as e:
            need("." in str(e), f"{name} is refused with advice", str(e), "where, what, what instead", "a bare refusal")
            return False
        for _ in range(2):
            made.run(_IDS)
        ends.append(made)
    plain, marked = ends
    cause = "chain.server is not called, or its total is not the one that is applied"
    need_close(_model(marked), _model(plain), f"{name}: the server's half of transforms is run", cause, 1e-6)
    calls = [x for p, x in tree.paths(marked.state) if p.endswith("calls")]
    need(bool(calls), f"{name}: state of transforms is in the round's state", "none", "a leaf", "state that is dropped")
    cause = "the chain's new state is not returned"
    most = float(calls[0].max())  # once a round; more where a model passes several clients in one
    least = 2.0 * round.traits().sums_per_round
    need(most >= least, f"{name}: state of transforms is kept", most, f"at least {least:g}", cause)
    return True


def is_pure(round: Round, fixture: RoundFixture) -> str:
    """The same state and key ask for the same and give the same; what came in is left alone."""
    made = _made(round, fixture)
    made.run(_IDS)
    before = tree.digest(made.state)
    asked: list[list[str]] = []
    ends = [_played(made, asked) for _ in range(2)]
    need(tree.digest(made.state) == before, "leaves its state alone", "a change in place", "no change", "+= or add_")
    need(asked[0] == asked[1], "asks for the same", asked[1], asked[0], "a draw without a key")
    need_same(ends[0][0], ends[1][0], "gives the same twice", "a draw without a key, or state kept in the object")
    return "pure: it can be played again"


def keeps_structure(round: Round, fixture: RoundFixture) -> str:
    """The state is a tree of tensors that keeps its structure; the model looks like the model."""
    made = _made(round, fixture)
    first = made.state
    wrong = [p for p, x in tree.paths(first) if not isinstance(x, Tensor)]
    need(not wrong, "the state is a tree of tensors", wrong, "tensors", "a number or a list; use torch.tensor")
    made.run(_IDS)
    need_shape(made.state, first, "the state keeps its structure", "a key that is added or dropped on the way")
    need_shape(_model(made), made.problem.model, "model(state) looks like the model", "a client axis that was left")
    return "its state is a tree that keeps its structure"


def goes_on_from_a_checkpoint(round: Round, fixture: RoundFixture) -> str:
    """Written and read again after a round, it goes on with the same bits."""
    ends = []
    for stop in (False, True):
        made = _made(round, fixture)
        made.run(_IDS)
        if stop:
            file = io.BytesIO()
            torch.save(made.state, file)
            file.seek(0)
            made.state = torch.load(file, weights_only=True)
        made.run(_IDS[:3])
        ends.append(made.state)
    need_same(ends[1], ends[0], "goes on from a checkpoint", "something that is kept outside of the state")
    return "goes on from a checkpoint"


def says_what_happened(round: Round, fixture: RoundFixture) -> str:
    """The outcome is about the clients that were asked, and counts bytes."""
    outcome = _made(round, fixture).run(_IDS)
    columns, n = outcome.columns(), len(outcome.ids)
    sizes = (len(columns.loss), len(columns.finite), len(outcome.examples))
    need(sizes == (n, n, n), "one entry for each client", sizes, (n, n, n), "columns of another request")
    traffic = outcome.traffic
    good = all(isinstance(n, int) and n >= 0 for n in outcome.bytes().values())
    need(good, "counts bytes", tuple(traffic), "whole numbers", "a share of a byte")
    return "says what happened"


def takes_an_empty_cohort(round: Round, fixture: RoundFixture) -> str:
    """A round to which nobody comes leaves numbers behind, not NaN."""
    made = _made(round, fixture)
    outcome = made.run(())
    bad = [p for p, x in tree.paths(made.state) if not bool(torch.isfinite(x.double()).all())]
    need(not bad, "an empty round leaves finite numbers", bad, "none", "a mean over nobody")
    need(len(outcome.ids) == 0, "an empty round asks nobody", len(outcome.ids), 0, "a cohort of its own")
    return "takes an empty cohort"


def declares_itself(round: Round, fixture: RoundFixture) -> str:
    """What traits say of the broadcast is so, and they do not contradict each other."""
    made = _made(round, fixture)
    ctx, traits = made.context(_IDS), made.round.traits()
    cause = "traits of its own; use OWN_MODELS where clients have models of their own"
    alone = (traits.per_client, traits.has_server, traits.sends_rows)
    need(not traits.per_client or alone == (True, False, True), "traits agree", alone, (True, False, True), cause)
    sent = [made.round.broadcast(ctx, made.state, torch.tensor(_IDS[:n]))[0] for n in (2, 5)]
    shapes = [[tuple(x.shape) for x in tree.leaves(one)] for one in sent]
    rows, cause = shapes[0] != shapes[1], "sends_rows is not declared, or was lost by a wrapper"
    need(rows == traits.sends_rows, "declares whether it broadcasts rows", traits.sends_rows, rows, cause)
    return "declares what it is"


def learns(round: Round, fixture: RoundFixture) -> str:
    """Rounds (on quadratics, where averages are taken) bring the model nearer to where it does not move any more.

    Where whoever comes first is in a sum, each of them pulls the model to its own optimum: what must come to rest is
    the mean of the models of as many rounds as there are clients.
    """
    problem = fixture.to_rest()
    algorithm = fixture.algorithm(problem, 0.1)
    made = federation(problem, algorithm, stack, round=fixture.around(round, algorithm, Chain(), problem))
    width = len(made.everyone()) if round.traits().selects_by_time else 1
    models = [_model(made)["params"]]
    for _ in range(24 + width):
        made.run(made.everyone())
        models.append(_model(made)["params"])
    means = [tree.map(lambda *xs: torch.stack(xs).mean(0), *models[i : i + width]) for i in range(26)]
    gaps = [tree.sub(b, a) for a, b in pairwise(means)]
    moves = [float(tree.dot(gap, gap).sqrt()) for gap in gaps]
    need(max(moves) > 0, "learns", "a model that never moved", "a model that moves", "an update that is not applied")
    need(moves[-1] < 0.5 * max(moves), "comes to rest", moves[-1], f"below {0.5 * max(moves):.3g}", "a wrong sign")
    return "learns, and comes to rest"


CHECKS: tuple[Callable[[Round, RoundFixture], str], ...] = (
    is_pure,
    keeps_structure,
    goes_on_from_a_checkpoint,
    says_what_happened,
    takes_an_empty_cohort,
    declares_itself,
    learns,
)

BATCH_NORM: dict[str, Callable[[Problem, Algorithm, Round], tuple[Algorithm, Round]]] = {
    "average": lambda problem, algorithm, round: (algorithm, round),
    "local": lambda problem, algorithm, round: (keep_statistics_local(algorithm), round),
    "recompute": lambda problem, algorithm, round: (
        algorithm,
        Recompute.around(round, Statistics(problem.task), problem.model["buffers"]),
    ),
}


def _made(
    round: Round,
    fixture: RoundFixture,
    chain: Chain | None = None,
    reducer: Reducer[Any] | None = None,
    policy: str = "average",
    engine: EngineFactory = stack,
) -> Federation:
    problem = fixture.problem() if policy == "average" else fixture.to_rest()
    algorithm = fixture.algorithm(problem, 0.05)
    round = fixture.around(round, algorithm, chain or Chain(), problem)
    algorithm, round = BATCH_NORM[policy](problem, algorithm, round)
    counts = {"cohort": len(_IDS), "expected": float(len(_IDS)), "rounds": 6, "min_separation": 2}
    return federation(problem, algorithm, engine, chain, reducer or Mean(), round, counts)


def _played(made: Federation, asked: list[list[str]]) -> tuple[Tree, Outcome]:
    """The next round, without keeping it; what it asked for goes into the list."""
    ctx, key, names = made.context(_IDS), rng.key("again"), []
    game = on_promises(lambda: made.round.run(ctx, made.state, key))
    request, answer = next(game), None
    try:
        while True:
            known = isinstance(request, Train | Evaluate | Exchange)
            need(known, "asks for what drivers know", type(request).__name__, "Train, Evaluate, Exchange", "a new kind")
            names.append(f"{type(request).__name__} {_mark(request)}")
            if isinstance(request, Train):
                request = replace(request, client_state="none" if request.client_state == "none" else "read")
            answer = made.engine.submit(request)
            request = game.send(answer)
    except StopIteration as end:
        asked.append(names)
        result: tuple[Tree, Outcome] = end.value
        return result


def _mark(request: Any) -> str:
    return tree.digest({"sent": request.sent, "key": request.key}) if isinstance(request, Train) else ""


def _model(made: Federation) -> Tree:
    return made.round.model(made.state)


def agrees_on_engines(round: Round, engines: Sequence[EngineFactory], fixture: RoundFixture = AVERAGED) -> None:
    """The same round on several engines."""
    ends = []
    for engine in engines:
        made = _made(round, fixture, engine=engine)
        made.run(_IDS)
        ends.append(_model(made))
    for other in ends[1:]:
        need_close(other, ends[0], "same on every engine", "an answer whose order was taken for that of the cohort")
