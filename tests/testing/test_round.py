"""The kit for rounds, over every round x transform x reducer x BatchNorm policy; and rounds that it must refuse."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import atoll
from atoll import rng, tree
from atoll.core import Context, Model, Outcome, Play, Round, RoundTraits, Traffic
from atoll.engines import Loop, Threads, Vector
from atoll.errors import ConfigError, ConformanceError
from atoll.reducers import REDUCERS
from atoll.rounds import DECENTRALISED, ROUNDS, Central, KnowledgeTransfer, client_key, server_state, server_step
from atoll.testing import BATCH_NORM, KNOWLEDGE_TRANSFER, check_round, check_transforms
from atoll.testing.round import agrees_on_engines
from atoll.transforms import TRANSFORMS
from atoll.tree import Tree
from tests.support.marks import slow_but
from tests.testing.test_conformance import REDUCER_OPTIONS, TRANSFORM_OPTIONS

BEFORE: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {  # what a transform needs before it
    "clip": (("equal_weights", {}), ("clip_l2", {"max_norm": 0.5})),
    "l1": (("equal_weights", {}), ("clip_l1", {"max_norm": 0.5})),
    "integers": (("equal_weights", {}), ("clip_l2", {"max_norm": 0.5}), ("fixed_point", {"step": 0.01})),
}
NEEDS = {
    **dict.fromkeys(("gaussian_noise", "banded_noise", "tree_noise", "fixed_point", "local_gaussian"), "clip"),
    **dict.fromkeys(("privunit", "approximate_local", "adaptive_clip", "nbafl"), "clip"),
    **dict.fromkeys(("laplace_noise", "local_laplace"), "l1"),
    **dict.fromkeys(("discrete_gaussian", "skellam", "secure_sum"), "integers"),
}
OPTIONS = {  # for the kit's models
    **TRANSFORM_OPTIONS,
    "clip_layers": {"max_norms": {"delta": 0.3, "rest": 0.2}},
    "joint_clip": {"max_norms": {"delta": 0.5, "rest": 2.0}, "shares": {"delta": 0.6, "rest": 0.4}},
    "banded_noise": {"noise_multiplier": 1.0, "bands": 2},
}
# What a round takes; everything else it must refuse. A reducer that looks at single updates has no noisy sum.
SUMS = {"gaussian_noise", "laplace_noise", "banded_noise", "tree_noise", "discrete_gaussian", "skellam", "secure_sum"}
SUMS |= {"approximate_local", "adaptive_clip", "shared_mask", "sketch"}
# What partial sums turn into plain numbers again, and what is accounted for a sum that only a server sees.
NOT_REDUCED = {"top_k", "rand_k", "low_rank", "qsgd", "uniform_quantise", "drive", "half", "sign", "ternary", "entropy"}
NOT_REDUCED |= {"mask_layers", "secure_sum", "gaussian_noise", "laplace_noise", "banded_noise", "tree_noise"}
NOT_REDUCED |= {"discrete_gaussian", "skellam", "approximate_local", "weak_dp", "nbafl"}


# Updates come four times as long once: a bound between the two would make a difference that is none of the round's.
FAR: dict[str, dict[str, Any]] = {"norm_clipping": {"max_norm": 1e6}, "centred_clipping": {"radius": 1e6}}


def chain(name: str) -> tuple[Any, ...]:
    before = BEFORE[NEEDS[name]] if name in NEEDS else ()
    return tuple(TRANSFORMS[n](**o) for n, o in (*before, (name, OPTIONS[name])))


NO_SERVER = (
    *(name for name in DECENTRALISED if name != "all_reduce"),
    "cyclic",
    "ring",
    "one_shot",
)  # nobody holds two updates
CLUSTERS = ("ifca", "hypcluster", "clustered_fl")  # a server with several models


def holds(round: str, reducer: str, policy: str, transform: str) -> bool:
    """What is expected to hold together."""
    if round in (*NO_SERVER, "all_reduce", "fedma") and reducer != "mean":
        return False
    if round in (*NO_SERVER, *CLUSTERS, "fedma") and transform in SUMS:
        return False
    if round in NO_SERVER + CLUSTERS and policy == "recompute":
        return False
    if round == "all_reduce" and transform in NOT_REDUCED:
        return False
    if transform in SUMS and reducer != "mean":
        return False
    return not (policy == "local" and transform == "joint_clip")  # no buffers are left for "rest"


def registered(name: str) -> Round:
    """For the six clients of the kit."""
    round: Round = ROUNDS[name](**({"population": 6} if name == "hierarchical" else {}))
    return round


FIRST = ("mean", "client_weights", "median", "trimmed_mean")  # one of every kind
# Its residuals are divided by their scale plus 1e-7, as in its authors' code: near zero four times as long is not alike
ABSOLUTE = ("residual_reweighting",)
TWO = ("mean", "median")
ONCE = ("central", "gossip")  # with every reducer; others with two
ON_GRAPHS = [name for name in DECENTRALISED if name not in ONCE]
# Swarm steps as central does, hypcluster as ifca.
OWN_WAY = (*ON_GRAPHS, "cyclic", "ring", "one_shot", "ifca", "clustered_fl", "fedma", "fedbuff", "hierarchical")
OTHERS = [r for r in REDUCERS if r not in FIRST + ABSOLUTE]


@pytest.mark.parametrize("policy", BATCH_NORM)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(
    ("name", "reducers"),
    [
        *(pytest.param(name, FIRST, id=f"first-{name}") for name in ONCE),
        *(pytest.param(name, OTHERS, id=f"others-{name}", marks=pytest.mark.slow) for name in ONCE),
        *(pytest.param(name, TWO, id=f"two-{name}", marks=pytest.mark.slow) for name in OWN_WAY),
    ],
)
def test_the_server_side_of_every_transform_is_run_by_every_round_that_takes_it(
    name: str, transform: str, policy: str, reducers: list[str]
) -> None:
    for reducer in reducers:
        named = REDUCERS[reducer](**{**REDUCER_OPTIONS[reducer], **FAR.get(reducer, {})})
        ran = check_transforms(registered(name), chain(transform), transform, named, policy)
        assert ran == holds(name, reducer, policy, transform), (reducer, ran)


@pytest.mark.parametrize("name", slow_but(ROUNDS, "central", "gossip", "cyclic", "ifca"))
def test_every_registered_round_conforms(name: str) -> None:
    assert check_round(registered(name))[-1] == "both halves of every transform"


@pytest.mark.parametrize("name", slow_but(ROUNDS, "central", "gossip", "cyclic", "ifca"))
def test_every_registered_round_is_the_same_on_every_engine(name: str) -> None:
    agrees_on_engines(registered(name), [Loop, Vector, Threads])


def test_the_round_of_knowledge_transfer_conforms_and_refuses_transforms() -> None:
    assert check_round(Central(), fixture=KNOWLEDGE_TRANSFER)[-1] == "refuses transforms, with advice"
    agrees_on_engines(Central(), [Loop, Vector, Threads], KNOWLEDGE_TRANSFER)


# Rounds that are wrong.


@dataclass(frozen=True)
class OneServer(Round):
    """Central, written out: each of those below gets one thing of it wrong."""

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        return server_state(ctx, model, key)

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        ids, participation = ctx.sample()
        trained = yield ctx.train(*self.broadcast(ctx, state, ids), ids, client_key(key))
        state = self.stepped(ctx, state, trained, key)
        return state, Outcome(ids, participation, trained.examples, trained.columns, Traffic(0, 0))

    def stepped(self, ctx: Context, state: Tree, trained: Any, key: Tensor) -> Tree:
        return server_step(ctx, state, trained, key).state


class ForgetsTheServerSide(OneServer):
    def stepped(self, ctx: Context, state: Tree, trained: Any, key: Tensor) -> Tree:
        total, _, _ = ctx.program.reducer.finish(trained.partial, {}, key)
        if not trained.rows:
            return state
        return {**state, "server": ctx.algorithm.apply(state["server"], total, key)}


class ForgetsTheState(OneServer):
    def stepped(self, ctx: Context, state: Tree, trained: Any, key: Tensor) -> Tree:
        return {**super().stepped(ctx, state, trained, key), "chain": state["chain"]}


class DrawsInOrder(OneServer):
    def stepped(self, ctx: Context, state: Tree, trained: Any, key: Tensor) -> Tree:
        import torch

        new = super().stepped(ctx, state, trained, key)
        with torch.random.fork_rng(devices=[]):
            noise = tree.map(lambda x: x + 1e-3 * torch.seed() % 7, new["server"]["params"])
        return {**new, "server": {**new["server"], "params": noise}}


class WritesInPlace(OneServer):
    def stepped(self, ctx: Context, state: Tree, trained: Any, key: Tensor) -> Tree:
        tree.map(lambda x: x.add_(1e-3), state["server"]["params"])
        return super().stepped(ctx, state, trained, key)


class NeverApplies(OneServer):
    def stepped(self, ctx: Context, state: Tree, trained: Any, key: Tensor) -> Tree:
        return {**super().stepped(ctx, state, trained, key), "server": state["server"]}


class DividesByNobody(OneServer):
    def stepped(self, ctx: Context, state: Tree, trained: Any, key: Tensor) -> Tree:
        total, reducer, _ = ctx.program.reducer.finish(trained.partial, state["reducer"], key)
        total, chain = ctx.chain.server(replace(total, invited=1), state["chain"], rng.fold_name(key, "server"))
        return {"server": ctx.algorithm.apply(state["server"], total, key), "chain": chain, "reducer": reducer}


class RowsUnsaid(OneServer):
    def broadcast(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[Tree, Tree]:
        sent, seen = super().broadcast(ctx, state, ids)
        return tree.stack(sent, len(ids)), seen

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        ids, participation = ctx.sample()
        trained = yield ctx.train(*self.broadcast(ctx, state, ids), ids, client_key(key), per_client=True)
        state = self.stepped(ctx, state, trained, key)
        return state, Outcome(ids, participation, trained.examples, trained.columns, Traffic(0, 0))


class OwnModelsWithAServer(OneServer):
    def traits(self) -> RoundTraits:
        return RoundTraits(per_client=True)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (RowsUnsaid, "declares whether it broadcasts rows"),
        (OwnModelsWithAServer, "traits agree"),
        (ForgetsTheServerSide, "the server's half of transforms is run"),
        (ForgetsTheState, "state of transforms is kept"),
        (DrawsInOrder, "gives the same twice"),
        (WritesInPlace, "leaves its state alone"),
        (NeverApplies, "learns"),
        (DividesByNobody, "an empty round leaves finite numbers"),
    ],
)
def test_a_wrong_round_is_refused_and_told_why(wrong: type[Round], words: str) -> None:
    with pytest.raises(ConformanceError, match=words):
        check_round(wrong())


class KeepsAnswersItself(KnowledgeTransfer):
    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        kept = self.__dict__.setdefault("kept", {})
        new, outcome = yield from super().run(ctx, {**state, **kept}, key)
        kept["answers"] = new["answers"]
        return new, outcome


class ForgetsTheTower(KnowledgeTransfer):
    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        new, outcome = yield from super().run(ctx, state, key)
        return {**new, "server": state["server"]}, outcome


@pytest.mark.parametrize(
    ("wrong", "words"), [(KeepsAnswersItself, "asks for the same"), (ForgetsTheTower, "a model that never moved")]
)
def test_a_wrong_round_of_knowledge_transfer_is_refused(wrong: Any, words: str) -> None:
    def around(*given: Any) -> Round:
        right: Any = KNOWLEDGE_TRANSFER.around(*given)
        made: Round = wrong(right.sizes, right.steps)
        return made

    with pytest.raises(ConformanceError, match=words):
        check_round(Central(), fixture=replace(KNOWLEDGE_TRANSFER, around=around))


def test_the_right_one_that_they_are_made_of_is_not() -> None:
    assert check_round(OneServer()) == check_round(Central())


# Gossip as users meet it: what was wrong in the first version.

BASE: dict[str, Any] = {
    "rounds": 2,
    "data": "digits",
    "partition": {"name": "iid", "clients": 4},
    "task": {"model": "linear"},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "engine": "vector",
    "evaluate": {"clients": 0},
}
CHAINS: dict[str, list[Any]] = {
    "joint_clip": [{"name": "joint_clip", "max_norms": {"rest": 100.0}, "shares": {"rest": 1.0}}],
    "weak_dp": [{"name": "weak_dp", "max_norm": 100.0, "std": 0.0}],
    "fixed_point": ["equal_weights", {"name": "clip_l2", "max_norm": 9.0}, {"name": "fixed_point", "step": 1e-4}],
}


@pytest.mark.parametrize("name", slow_but(CHAINS, "joint_clip"))
def test_gossip_among_equals_with_transforms_learns_as_one_server_does(name: str, tmp_path: Path) -> None:
    base = {**BASE, "transform": CHAINS[name]}
    central = atoll.run(base, tmp_path / "central")
    gossip = atoll.run({**base, "round": {"name": "gossip", "graph": "complete"}}, tmp_path / "gossip")
    assert gossip.final["accuracy"] == pytest.approx(central.final["accuracy"], abs=0.02)
    assert gossip.final["accuracy"] > 0.2


def test_noise_of_weak_dp_is_really_added_under_gossip(tmp_path: Path) -> None:
    chains = [[{"name": "weak_dp", "max_norm": 100.0, "std": std}] for std in (0.0, 1.0)]
    base = {**BASE, "rounds": 1, "round": "gossip"}
    models = [atoll.run({**base, "transform": c}, tmp_path / str(i)).params for i, c in enumerate(chains)]
    assert float(tree.norm(tree.sub(models[1], models[0]))) > 1.0


def test_recomputed_statistics_are_refused_under_gossip(tmp_path: Path) -> None:
    task = {"model": "resnet18", "batch_norm": "recompute"}
    with pytest.raises(ConfigError, match=r"task.batch_norm: 'recompute' .* Use 'average' or 'local'"):
        atoll.run({**BASE, "task": task, "round": "gossip"}, tmp_path)
