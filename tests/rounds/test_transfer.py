"""Models that travel from client to client, elected leaders, and one exchange at the end."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import atoll
from atoll import tree
from atoll.algorithms.fedavg import FedAvg
from atoll.algorithms.local_only import LocalOnly
from atoll.core import Round
from atoll.engines import Loop, Vector
from atoll.errors import ConfigError, SpecError
from atoll.experiment import Experiment, set_up
from atoll.records import RunFolder
from atoll.rounds import Central, CyclicTransfer, OneShot, Ring, Swarm
from atoll.runs.checkpoint import read_checkpoint
from atoll.tasks import Classification, Regression
from atoll.testing.assertions import distance
from atoll.testing.harness import Federation, federation, some
from atoll.testing.problems import Problem, network, quadratics
from tests.algorithms.test_algorithms import perceptron, plain

LR = 0.1


def played(problem: Problem, round: Round, rounds: int, cohorts: Any = None, engine: Any = Loop) -> Federation:
    made = federation(problem, FedAvg(problem.task, LR), engine, round=round)
    for r in range(rounds):
        made.run(made.everyone() if cohorts is None else cohorts(r))
    return made


def after(problem: Problem, params: Any, client: int) -> Any:
    """The model of one client that trains alone from these parameters: by the central round of one."""
    start = {**problem.model, "params": params}
    alone = Problem(problem.task, start, problem.columns, problem.partition, problem.batch)
    made = federation(alone, FedAvg(problem.task, LR))
    made.run([client])
    return made.server["params"]


# Cyclic.


@pytest.mark.parametrize("engine", [Loop, Vector])
def test_each_client_trains_what_the_one_before_it_had(engine: Any) -> None:
    problem, params = quadratics(), quadratics().model["params"]
    for client in (0, 2, 3, 5):
        params = after(problem, params, client)
    made = played(problem, CyclicTransfer(), 1, lambda r: [3, 0, 5, 2], engine)
    assert distance(made.server["params"], params) < 1e-6


@pytest.mark.parametrize("engine", [Loop, Vector])
@pytest.mark.parametrize("rings", [6, 99])
def test_a_ring_for_every_client_is_fedavg(rings: int, engine: Any) -> None:
    problem = network()
    truth = played(problem, Central(), 3, some(4), engine)
    assert distance(played(problem, CyclicTransfer(rings), 3, some(4), engine).server, truth.server) < 1e-6


@pytest.mark.parametrize(
    "round", [CyclicTransfer(), CyclicTransfer(3), Ring(), OneShot(), Swarm()], ids=lambda r: type(r).__name__
)
def test_one_client_alone_is_local_training(round: Round) -> None:
    problem = plain(perceptron()).only(3)
    made = played(problem, round, 3)
    alone = federation(problem, LocalOnly(problem.task, LR))
    for _ in range(3):
        alone.run([0])
    assert distance(made.round.model(made.state)["params"], tree.rows(alone.models()["params"], 0)) < 2e-6


def test_rings_go_round_apart_and_are_averaged_by_examples() -> None:
    problem, start = quadratics(), quadratics().model["params"]
    ends = []
    for ring in ((0, 2, 4), (1, 3, 5)):
        params = start
        for client in ring:
            params = after(problem, params, client)
        ends.append(params)
    n = problem.partition.sizes.float()
    shares = torch.stack([n[[0, 2, 4]].sum(), n[[1, 3, 5]].sum()]) / n.sum()
    want = tree.map(lambda a, b: shares[0] * a + shares[1] * b, *ends)
    assert distance(played(problem, CyclicTransfer(2), 1).server["params"], want) < 1e-6


def test_a_shuffled_order_is_another_one_in_every_round() -> None:
    problem = quadratics()
    made = federation(problem, FedAvg(problem.task, LR), round=CyclicTransfer(order="shuffled"))
    orders = [made.run(range(6)).ids.tolist() for _ in range(3)]
    assert all(sorted(order) == [0, 1, 2, 3, 4, 5] for order in orders)
    assert len({tuple(order) for order in orders}) == 3


# A ring of models.


def test_models_move_on_by_one_client_in_a_round() -> None:
    problem, start = quadratics(), quadratics().model["params"]
    made = played(problem, Ring(), 2)
    for holder in range(6):  # has what its two predecessors made of it
        want = after(problem, after(problem, start, (holder - 2) % 6), (holder - 1) % 6)
        assert distance(tree.rows(made.server["params"], holder), want) < 1e-6


def test_who_does_not_come_keeps_what_it_has() -> None:
    problem, start = quadratics(), quadratics().model["params"]
    made = played(problem, Ring(), 1, lambda r: [4, 1, 2])
    for holder, before in ((1, 4), (2, 1), (4, 2)):
        assert distance(tree.rows(made.server["params"], holder), after(problem, start, before)) < 1e-6
    for holder in (0, 3, 5):
        assert distance(tree.rows(made.server["params"], holder), start) == 0.0


def test_a_round_trip_visits_everybody_once() -> None:
    problem, start = quadratics(), quadratics().model["params"]
    made = played(problem, Ring(), 6)
    for holder in range(6):
        want = start
        for step in range(6):
            want = after(problem, want, (holder + step) % 6)
        assert distance(tree.rows(made.server["params"], holder), want) < 1e-5


# Swarm.


@pytest.mark.parametrize("election", ["rotate", "random"])
def test_a_swarm_is_fedavg_bit_for_bit(election: Any) -> None:
    problem = network()
    swarm, truth = (played(problem, r, 3, some(3), Vector) for r in (Swarm(election), Central()))
    assert distance(swarm.server, truth.server) == 0.0


def leaders(round: Round, cohorts: Sequence[Sequence[int]]) -> list[int]:
    problem = quadratics()
    made = federation(problem, FedAvg(problem.task, LR), round=round)
    return [int(made.run(ids).diagnostics["swarm"]["leader"]) for ids in cohorts]


def test_leaders_take_turns_among_those_who_come() -> None:
    cohorts = [[5, 1, 2], [2, 1, 5], [0, 1, 2], [], [3, 4], [0, 1], [0, 1]]
    assert leaders(Swarm(), cohorts) == [1, 2, 0, 0, 3, 0, 1]
    drawn = leaders(Swarm("random"), [[0, 1, 2, 3, 4, 5]] * 12)
    assert len(set(drawn)) > 2


def test_a_leader_sends_itself_nothing() -> None:
    problem = network()
    ends = [federation(problem, FedAvg(problem.task, LR), round=r).run([0, 1, 2, 3]) for r in (Central(), Swarm())]
    central, swarm = (o.bytes() for o in ends)
    assert {k: 4 * v for k, v in swarm.items()} == {k: 3 * v for k, v in central.items()}


def test_too_few_peers_merge_nothing() -> None:
    problem = network()
    made = federation(problem, FedAvg(problem.task, LR), round=Swarm(min_peers=3))
    outcome = made.run([0, 1])
    assert not outcome.changed
    assert distance(tree.select(made.server, ("params", "buffers")), problem.model) == 0.0
    assert made.run([0, 1, 2]).changed


# One shot.


def test_one_round_is_fedavgs_first() -> None:
    problem = network()
    once, truth = played(problem, OneShot(), 1, engine=Vector), played(problem, Central(), 1, engine=Vector)
    assert distance(once.round.model(once.state), tree.select(truth.server, ("params", "buffers"))) < 1e-6


def test_clients_train_alone_until_the_exchange() -> None:
    problem = plain(perceptron())
    once, alone = played(problem, OneShot(), 4), federation(problem, LocalOnly(problem.task, LR))
    for _ in range(4):
        alone.run(range(6))
    assert distance(once.server["params"], alone.models()["params"]) < 2e-6


def test_a_model_is_sent_once_and_by_those_who_trained() -> None:
    problem = network()
    made = federation(problem, FedAvg(problem.task, LR), round=OneShot())
    each = federation(problem, FedAvg(problem.task, LR)).run([0]).bytes()
    sent = [made.run(ids).bytes() for ids in ([0, 1], [1, 2], [0, 1, 2])]
    assert sent == [{k: n * v for k, v in each.items()} for n in (2, 1, 0)]
    assert len(tree.leaves(made.round.ensembles(made.state)["ensemble"])[0]) == 3


def test_those_who_never_trained_are_not_in_the_mean() -> None:
    problem, start = quadratics(), quadratics().model["params"]
    made = played(problem, OneShot(), 1, lambda r: [2])
    assert distance(made.round.model(made.state)["params"], after(problem, start, 2)) < 1e-6


# Models that predict together.


def chances(outs: Tensor) -> Tensor:
    return outs.softmax(-1).mean(0)


def test_probabilities_are_averaged_and_not_logits() -> None:
    outs = torch.tensor([[[8.0, 0.0, 0.0]], [[0.0, 1.0, 0.5]], [[0.0, 2.0, 0.0]]])
    found = Classification(3).together(outs)
    assert torch.allclose(found.softmax(-1), chances(outs), atol=1e-6)
    assert found.argmax(-1).tolist() != outs.mean(0).argmax(-1).tolist()
    one = Classification(2).together(outs[..., :1])
    assert torch.allclose(torch.sigmoid(one), torch.sigmoid(outs[..., :1]).mean(0), atol=1e-6)
    assert torch.equal(Regression().together(outs), outs.mean(0))
    same = outs[1:2].expand(5, 1, 3)
    assert torch.allclose(Classification(3).together(same).softmax(-1), outs[1].softmax(-1), atol=1e-6)


GIVEN: dict[str, Any] = {
    "rounds": 3,
    "engine": "vector",
    "data": "digits",
    "partition": {"name": "classes", "clients": 6, "per_client": 4},
    "task": {"model": "linear"},
    "local": {"batch": 16, "max_steps": 4},
    "algorithm": {"name": "fedavg", "lr": 0.2},
    "evaluate": {"holdout": 0.2},
    "checkpoint": {"every": 1},
}
ROUNDS: dict[str, dict[str, Any]] = {
    "cyclic": {"name": "cyclic"},
    "rings": {"name": "cyclic", "rings": 2, "order": "shuffled"},
    "ring": {"name": "ring"},
    "swarm": {"name": "swarm"},
    "one_shot": {"name": "one_shot"},
}


def run(folder: Path, name: str, **changes: Any) -> atoll.Run:
    return atoll.run({**GIVEN, "round": ROUNDS[name], **changes}, folder)


def lines(run: atoll.Run) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in RunFolder(run.folder).record()]


@pytest.mark.parametrize("engine", ["vector", "loop"])
def test_an_ensemble_is_measured_beside_the_mean(engine: str, tmp_path: Path) -> None:
    done = run(tmp_path / "run", "one_shot", engine=engine)
    last = lines(done)[-1]
    models = read_checkpoint(RunFolder(done.folder)).round["server"]["params"]
    weight, bias = (next(x for x in models.values() if x.dim() == d) for d in (3, 2))
    test = set_up(Experiment.parse(GIVEN)).dataset.test
    assert test is not None
    x, y = test["x"].float().flatten(1) / 16, test["y"]
    mean = chances(torch.einsum("nd,kcd->knc", x, weight) + bias[:, None])
    loss = nn.functional.nll_loss(mean.log(), y)
    assert last["ensemble"]["accuracy"] == pytest.approx(float((mean.argmax(1) == y).float().mean()), abs=1e-6)
    assert last["ensemble"]["loss"] == pytest.approx(float(loss), rel=1e-4)
    assert last["ensemble"]["accuracy"] != last["accuracy"]


@pytest.mark.parametrize("name", ROUNDS)
def test_a_resumed_run_has_the_same_bits(name: str, tmp_path: Path) -> None:
    cohort = {"cohort": {"name": "fixed", "size": 4}}
    whole = run(tmp_path / "whole", name, **cohort)
    run(tmp_path / "part", name, rounds=2, **cohort)
    again = atoll.run({**GIVEN, "round": ROUNDS[name], **cohort}, tmp_path / "part", resume=True)
    assert lines(again) == lines(whole)


@pytest.mark.parametrize("name", ROUNDS)
@pytest.mark.parametrize(
    "more",
    [
        {"transform": [{"name": "top_k", "share": 0.2}]},
        {"transform": [{"name": "qsgd", "levels": 4}]},
        {"attack": {"name": "label_flip", "share": 0.2}},
        {"algorithm": {"name": "fedadam", "lr": 0.1}},
    ],
    ids=["top_k", "qsgd", "label_flip", "fedadam"],
)
def test_what_works(name: str, more: dict[str, Any], tmp_path: Path) -> None:
    assert run(tmp_path / "run", name, rounds=2, **more).status == "finished"


@pytest.mark.parametrize(
    "more",
    [
        {"clock": {"seconds_per_step": 0.1, "devices": "phones", "deadline": 1.0}},
        {"reducer": "median"},
        {"server": {"ema": 0.9}},
        {"transform": ["equal_weights", {"name": "clip_l2", "max_norm": 1.0},
                       {"name": "gaussian_noise", "noise_multiplier": 1.0}]},
        {"attack": {"name": "sign_flip", "share": 0.2}},
    ],
    ids=["clock", "median", "ema", "noise", "sign_flip"],
)  # fmt: skip
def test_what_works_with_an_elected_leader_as_with_a_server(more: dict[str, Any], tmp_path: Path) -> None:
    central, swarm = (atoll.run({**GIVEN, "rounds": 2, "round": r, **more}, tmp_path / r) for r in ("central", "swarm"))
    assert [e["model"] for e in central.history] == [e["model"] for e in swarm.history]


CLIP = ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}]


@pytest.mark.parametrize("name", ["cyclic", "ring", "one_shot"])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clock": {"seconds_per_step": 0.1, "deadline": 9.0}}, r"clock.deadline: is about a server .* use round.name"),
        ({"reducer": "median"}, r"reducer.name: in a \w+ round no two updates come together.* Leave reducer out"),
        ({"algorithm": {"name": "scaffold", "lr": 0.1}}, r"round.name: Scaffold keeps the mean .* such as fedavg"),
        ({"algorithm": {"name": "centralised", "lr": 0.1}}, r"round.name: Centralised trains on all data"),
        ({"transform": [*CLIP, {"name": "gaussian_noise", "noise_multiplier": 1.0}]}, r"protects a sum"),
        ({"attack": {"name": "sign_flip", "share": 0.2}}, r"attack.name: sign_flip replaces .* Use an attack"),
        ({"secure": {"protocol": "secagg"}, "transform": CLIP}, r"secure: lets a server learn a sum"),
        ({"server": {"ema": 0.9}}, r"server.ema: averages"),
        ({"broadcast": [{"name": "top_k", "share": 0.1}]}, r"broadcast: compresses what a server sends"),
    ],
    ids=["deadline", "median", "scaffold", "centralised", "noise", "sign_flip", "secure", "ema", "broadcast"],
)
def test_what_needs_a_server_is_refused_with_advice(name: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, SpecError), match=words):
        set_up(Experiment.parse({**GIVEN, "round": ROUNDS[name], **changes}))


@pytest.mark.parametrize(
    ("round", "words"),
    [
        ({"name": "cyclic", "rings": 0}, r"round.rings: must be .*1"),
        ({"name": "cyclic", "order": "sideways"}, r"round.order: must be"),
        ({"name": "swarm", "min_peers": 7}, r"round.min_peers: 7 are more than the 6 clients"),
        ({"name": "swarm", "election": "vote"}, r"round.election: must be"),
    ],
)
def test_a_setting_out_of_range_is_refused(round: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        set_up(Experiment.parse({**GIVEN, "round": round}))


@pytest.mark.parametrize("cohort", [{"name": "fixed", "size": 3}, {"name": "fraction", "share": 0.5}])
def test_more_peers_than_a_cohort_has_are_refused(cohort: dict[str, Any]) -> None:
    """Nothing would ever be trained."""
    file = {**GIVEN, "round": {"name": "swarm", "min_peers": 5}, "cohort": cohort}
    with pytest.raises(ConfigError, match=r"round.min_peers: 5 are more than the 3 clients of a cohort.* at most 3"):
        set_up(Experiment.parse(file))
    set_up(Experiment.parse({**file, "round": {"name": "swarm", "min_peers": 3}}))
