"""Several models of one server: IFCA, hypothesis clusters, clustered FL."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import atoll
from atoll import rng, tree
from atoll.algorithms.fedavg import FedAvg
from atoll.core import Round
from atoll.engines import Loop, Vector
from atoll.errors import ConfigError, SpecError
from atoll.experiment import Experiment, set_up
from atoll.records import RunFolder
from atoll.reducers import Median
from atoll.rounds import Central, ClusteredFL, HypCluster, Ifca
from atoll.rounds.clustered_fl import bipartition
from atoll.runs import run_together
from atoll.runs.checkpoint import read_checkpoint
from atoll.testing.assertions import distance
from atoll.testing.harness import Federation, federation, some
from atoll.testing.problems import Problem, network, quadratics

ONE: dict[str, Round] = {"ifca": Ifca(1), "hypcluster": HypCluster(1), "clustered_fl": ClusteredFL(1)}


def two_camps(gap: float = 6.0) -> Problem:
    """Six quadratics of two optima: clients 0, 2, 4 want one thing, 1, 3, 5 another."""
    problem = quadratics()
    side = problem.partition.owners() % 2
    y = rng.normal(rng.key("camps"), (2, 4))
    y = y + gap * torch.tensor([[1.0], [-1.0]])
    return replace(problem, columns={**problem.columns, "y": y[side]})


def played(
    problem: Problem, round: Round, rounds: int, cohorts: Any = None, **more: Any
) -> tuple[Federation, list[Any]]:
    made = federation(problem, FedAvg(problem.task, 0.1), round=round, **more)
    return made, [made.run(made.everyone() if cohorts is None else cohorts(r)) for r in range(rounds)]


def clusters(outcome: Any, name: str) -> list[int]:
    said: Tensor = outcome.diagnostics["clusters"][name]
    return said.tolist()  # type: ignore[no-any-return]


# Identity.


@pytest.mark.parametrize("engine", [Loop, Vector])
@pytest.mark.parametrize("name", ONE)
def test_one_cluster_is_fedavg(name: str, engine: Any) -> None:
    problem = network()
    one, outcomes = played(problem, ONE[name], 3, some(3), engine=engine)
    truth, plain = played(problem, Central(), 3, some(3), engine=engine)
    assert distance(tree.rows(one.server, 0), truth.server) < 1e-6
    assert [o.bytes() for o in outcomes] == [o.bytes() for o in plain]


@pytest.mark.parametrize("name", ONE)
def test_one_cluster_takes_any_reducer(name: str) -> None:
    problem = network()
    one, _ = played(problem, ONE[name], 2, reducer=Median())
    truth, _ = played(problem, Central(), 2, reducer=Median())
    assert distance(tree.rows(one.server, 0), truth.server) < 1e-6


def test_hypotheses_that_only_warm_up_are_fedavg() -> None:
    problem = network()
    warm, _ = played(problem, HypCluster(3, warm_up=3), 2, some(4))
    truth, _ = played(problem, Central(), 2, some(4))
    assert distance(tree.rows(warm.server, 0), truth.server) < 1e-6


def test_a_cluster_that_never_splits_is_fedavg() -> None:
    problem = network()
    still, outcomes = played(problem, ClusteredFL(4, mean_below=1e-9), 3)
    truth, _ = played(problem, Central(), 3)
    assert distance(tree.rows(still.server, 0), truth.server) < 1e-6
    assert clusters(outcomes[-1], "sizes") == [6, 0, 0, 0]


# Against an oracle: clients one by one, by hand.


def test_ifca_is_its_algorithm_by_hand() -> None:
    problem, ids = two_camps(0.5), [0, 1, 2, 3, 4, 5]
    made = federation(problem, FedAvg(problem.task, 0.1), Vector, round=Ifca(3))
    models = [tree.map(torch.clone, tree.rows(made.server["params"], k)) for k in range(3)]
    for _ in range(4):
        outcome = made.run(ids)
        chosen = [min(range(3), key=lambda k: own_loss(problem, models[k], c)) for c in ids]
        assert clusters(outcome, "members") == chosen
        for k in range(3):
            members = [c for c in ids if chosen[c] == k]
            if members:
                models[k] = averaged(problem, models[k], members)
        for k in range(3):
            assert distance(tree.rows(made.server["params"], k), models[k]) < 1e-6


def own_loss(problem: Problem, params: Any, client: int) -> float:
    rows = problem.partition.of(client)
    batch = {**tree.rows(problem.columns, rows), "mask": torch.ones(len(rows))}
    return float(problem.task.loss(params, problem.model["buffers"], batch)[0])


def averaged(problem: Problem, params: Any, members: list[int]) -> Any:
    """FedAvg of these clients, from this model."""
    own = federation(replace(problem, model={**problem.model, "params": params}), FedAvg(problem.task, 0.1))
    own.run(members)
    return own.server["params"]


def test_two_camps_find_a_model_each() -> None:
    made, outcomes = played(two_camps(), Ifca(2), 6)
    members = clusters(outcomes[-1], "members")
    assert members[0] != members[1]
    assert members == [members[0], members[1]] * 3
    assert sorted(clusters(outcomes[-1], "sizes")) == [3, 3]
    assert int(outcomes[-1].diagnostics["clusters"]["switched"]) == 0
    assert made.state["cluster"].tolist() == members


def test_hypotheses_part_after_the_warm_up() -> None:
    _, outcomes = played(two_camps(), HypCluster(2, warm_up=2), 8)
    warm = [bool(o.diagnostics["clusters"]["warm_up"]) for o in outcomes]
    assert warm == [True, True, *[False] * 6]
    members = clusters(outcomes[-1], "members")
    assert members == [members[0], members[1]] * 3
    assert members[0] != members[1]


def test_a_model_that_nobody_chooses_stays_as_it_was() -> None:
    problem = two_camps()
    made = federation(problem, FedAvg(problem.task, 0.1), round=Ifca(2))
    far = tree.map(lambda x: torch.stack([x[0], x[1] + 1e4]), made.server["params"])
    made.state = {**made.state, "server": {**made.server, "params": far}}
    outcome = made.run(range(6))
    assert clusters(outcome, "sizes") == [6, 0]
    assert distance(tree.rows(made.server["params"], 1), tree.rows(far, 1)) == 0.0


def test_a_model_that_is_no_number_is_chosen_by_nobody() -> None:
    problem = two_camps()
    made = federation(problem, FedAvg(problem.task, 0.1), round=Ifca(2))
    broken = tree.map(lambda x: torch.stack([x[0] * float("nan"), x[1]]), made.server["params"])
    made.state = {**made.state, "server": {**made.server, "params": broken}}
    assert clusters(made.run(range(6)), "sizes") == [0, 6]


def test_a_newcomer_is_measured_with_the_largest_cluster() -> None:
    made, _ = played(two_camps(), Ifca(2), 1, lambda r: [0, 2, 4, 1])
    largest = int(made.state["cluster"][0])
    assert made.state["cluster"].tolist().count(-1) == 2
    sent, _ = made.round.broadcast(made.context([3, 5]), made.state, torch.tensor([3, 5]))
    assert distance(tree.rows(sent["params"], 0), tree.rows(made.server["params"], largest)) == 0.0


# Clustered FL.


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 7), st.integers(0, 1000))
def test_the_cut_has_the_smallest_largest_similarity_across_it(n: int, seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=(n, 3))
    similar = np.corrcoef(x) if n > 1 else np.ones((1, 1))
    cuts = [np.array(c) for c in itertools.product([False, True], repeat=n) if not c[0] and any(c)]
    across = [similar[np.ix_(~c, c)].max() for c in cuts]
    found = bipartition(similar)
    assert found.across == pytest.approx(min(across))
    assert similar[np.ix_(~found.leaving, found.leaving)].max() == pytest.approx(min(across))
    assert not found.leaving[0]


def standing_still() -> dict[str, float]:
    return {"mean_below": 0.3, "largest_above": 0.5}


def test_a_cluster_that_stands_still_is_split_by_direction() -> None:
    made, outcomes = played(two_camps(), ClusteredFL(3, **standing_still()), 40)
    assert made.state["cluster"].tolist() == [0, 1, 0, 1, 0, 1]
    split = [clusters(o, "sizes") for o in outcomes]
    when = split.index([3, 3, 0])
    assert when > 0
    assert split[when - 1] == [6, 0, 0]
    assert int(outcomes[when].diagnostics["clusters"]["switched"]) == 3
    before = outcomes[when - 1].diagnostics["clusters"]
    assert float(before["mean_length"][0]) >= 0.3 or float(before["largest_length"][0]) <= 0.5
    goals = [problem_optimum(two_camps(), members) for members in ([0, 2, 4], [1, 3, 5])]
    for k, goal in enumerate(goals):
        found = torch.cat([made.server["params"][n][k] for n in ("body", "norm", "head")])
        assert float((found - goal).norm() / goal.norm()) < 0.05


def problem_optimum(problem: Problem, members: list[int]) -> Tensor:
    """Clients of one camp agree on it."""
    found: Tensor = problem.columns["y"][problem.partition.of(members[0])[0]]
    return found


def test_a_cluster_is_not_split_while_a_member_is_away() -> None:
    made, _ = played(two_camps(), ClusteredFL(3, **standing_still()), 40, lambda r: [0, 1, 2, 3, 4])
    assert made.state["cluster"].tolist() == [0] * 6


@pytest.mark.parametrize("more", [{"gamma": 0.999}, {"clusters": 1}])
def test_neither_a_wide_gap_nor_more_clusters_than_allowed(more: dict[str, Any]) -> None:
    made, _ = played(two_camps(), ClusteredFL(**{"clusters": 3, **standing_still(), **more}), 40)
    assert made.state["cluster"].tolist() == [0] * 6


def test_both_halves_go_on_from_the_model_they_had() -> None:
    """The child's first model is the parent's before the split, moved by the child's own updates."""
    problem = two_camps()
    made = federation(problem, FedAvg(problem.task, 0.1), round=ClusteredFL(2, **standing_still()))
    while made.state["cluster"].max() == 0:
        before = tree.rows(made.server["params"], 0)
        made.run(range(6))
    for k, members in enumerate([[0, 2, 4], [1, 3, 5]]):
        assert distance(tree.rows(made.server["params"], k), averaged(problem, before, members)) < 1e-6


# As runs.

GIVEN: dict[str, Any] = {
    "rounds": 4,
    "engine": "vector",
    "data": "digits",
    "partition": {"name": "classes", "clients": 8, "per_client": 3},
    "task": {"model": "linear"},
    "local": {"batch": 16, "max_steps": 3},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "evaluate": {"holdout": 0.2},
    "checkpoint": {"every": 1},
}
ROUNDS: dict[str, dict[str, Any]] = {
    "ifca": {"name": "ifca", "clusters": 3},
    "hypcluster": {"name": "hypcluster", "clusters": 3},
    "clustered_fl": {"name": "clustered_fl", "clusters": 3, "mean_below": 5.0, "largest_above": 5.1},
}


def run(folder: Path, name: str, **changes: Any) -> atoll.Run:
    return atoll.run({**GIVEN, "round": ROUNDS[name], **changes}, folder)


def lines(run: atoll.Run) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in RunFolder(run.folder).record()]


@pytest.mark.parametrize("name", ROUNDS)
def test_a_resumed_run_has_the_same_bits(name: str, tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", name, cohort={"name": "fixed", "size": 6})
    run(tmp_path / "part", name, cohort={"name": "fixed", "size": 6}, rounds=2)
    file = {**GIVEN, "round": ROUNDS[name], "cohort": {"name": "fixed", "size": 6}}
    assert lines(atoll.run(file, tmp_path / "part", resume=True)) == lines(whole)


@pytest.mark.parametrize("name", ROUNDS)
def test_engines_agree_on_who_is_where(name: str, tmp_path: Path) -> None:
    a, b = (run(tmp_path / e, name, engine=e) for e in ("vector", "loop"))
    for one, other in zip(lines(a), lines(b), strict=True):
        assert one["diagnostics"]["clusters"]["members"] == other["diagnostics"]["clusters"]["members"]
        assert one["accuracy"] == pytest.approx(other["accuracy"], abs=0.01)


@pytest.mark.parametrize("name", ["ifca", "clustered_fl"])
def test_runs_that_share_a_stack_are_the_runs_alone(name: str, tmp_path: Path) -> None:
    files = [{**GIVEN, "rounds": 2, "round": ROUNDS[name], "seed": seed} for seed in (0, 1)]
    together = run_together([Experiment.parse(file) for file in files], [tmp_path / "s0", tmp_path / "s1"])
    for file, stacked in zip(files, together, strict=True):
        alone = atoll.run(file, tmp_path / f"alone{file['seed']}")
        for a, b in zip(lines(alone), lines(stacked), strict=True):
            assert a["diagnostics"]["clusters"]["members"] == b["diagnostics"]["clusters"]["members"]
            assert a["clients"]["loss"]["mean"] == pytest.approx(b["clients"]["loss"]["mean"], rel=1e-4)


def test_a_client_predicts_with_the_model_of_its_cluster(tmp_path: Path) -> None:
    done = run(tmp_path / "run", "ifca", rounds=2)
    members = lines(done)[-1]["diagnostics"]["clusters"]["members"]
    models = read_checkpoint(RunFolder(done.folder)).round["server"]["params"]
    for client in (0, 5):
        own = done.model(client=client).state_dict()
        for name, value in own.items():
            assert torch.equal(value, models[name][members[client]])


def test_clients_are_measured_with_the_models_of_their_clusters(tmp_path: Path) -> None:
    done = run(tmp_path / "run", "ifca")
    each, last = RunFolder(done.folder).clients(), lines(done)[-1]
    members = last["diagnostics"]["clusters"]["members"]
    assert each is not None
    assert len(set(members)) > 1
    setup = set_up(Experiment.parse({**GIVEN, "round": ROUNDS["ifca"]}))
    models = read_checkpoint(RunFolder(done.folder)).round["server"]["params"]
    weight, bias = (next(x for x in models.values() if x.dim() == d) for d in (3, 2))
    assert setup.held is not None
    for client, k in enumerate(members):
        rows = setup.held.of(client)
        x, y = setup.dataset.train["x"][rows].float().flatten(1) / 16, setup.dataset.train["y"][rows]
        hits = (x @ weight[k].T + bias[k]).argmax(1) == y
        assert each["before"]["accuracy"][client] == pytest.approx(float(hits.float().mean()), abs=1e-6)
    mean = np.mean([last[f"cluster{k}"]["accuracy"] for k in members])
    assert last["accuracy"] == pytest.approx(mean, abs=1e-6)


def test_every_client_is_sent_all_models_and_says_which_it_took(tmp_path: Path) -> None:
    one = lines(run(tmp_path / "one", "ifca", round={"name": "ifca", "clusters": 1}))[0]["bytes"]
    three = lines(run(tmp_path / "three", "ifca"))[0]["bytes"]
    assert three["down"] == 3 * one["down"]
    assert 0 < three["up"] - one["up"] <= 8 * 84  # the number of a cluster, of eight clients
    warm = lines(run(tmp_path / "warm", "hypcluster"))
    assert warm[0]["bytes"] == one
    assert warm[1]["bytes"] == three
    split = lines(run(tmp_path / "split", "clustered_fl"))
    assert {line["bytes"]["down"] for line in split} == {one["down"]}


@pytest.mark.parametrize("name", ROUNDS)
def test_a_clock_that_waits_changes_nothing_but_the_time(name: str, tmp_path: Path) -> None:
    plain = run(tmp_path / "plain", name)
    clocked = run(tmp_path / "clocked", name, clock={"seconds_per_step": 0.1, "devices": "phones"})
    assert without_time(plain) == without_time(clocked)
    line = RunFolder(clocked.folder).times()[-1]
    assert line["down"] * 8 == lines(plain)[-1]["bytes"]["down"]


def without_time(run: atoll.Run) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "clock"} for line in lines(run)]


def test_who_is_late_keeps_its_cluster_and_is_in_no_sum(tmp_path: Path) -> None:
    late = run(tmp_path / "late", "ifca", clock={"seconds_per_step": 0.1, "devices": "phones", "deadline": 0.5})
    for line in lines(late):
        assert len(line["diagnostics"]["clusters"]["members"]) == line["clock"]["counted"]
    assert any(line["clock"]["counted"] < 8 for line in lines(late))


@pytest.mark.parametrize("name", ROUNDS)
@pytest.mark.parametrize(
    "more",
    [
        {"transform": [{"name": "top_k", "share": 0.2}]},
        {"transform": [{"name": "qsgd", "levels": 4}]},
        {"reducer": "median"},
        {"attack": {"name": "label_flip", "share": 0.25}},
        {"algorithm": {"name": "ditto", "lr": 0.1}},
        {"algorithm": {"name": "fedper", "lr": 0.1}, "task": {"model": {"name": "mlp", "widths": [8]}}},
    ],
    ids=["top_k", "qsgd", "median", "label_flip", "ditto", "fedper"],
)
def test_what_works_with_clusters(name: str, more: dict[str, Any], tmp_path: Path) -> None:
    assert run(tmp_path / "run", name, rounds=2, **more).status == "finished"


CLIP = ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}]
SUM_NOISE = [*CLIP, {"name": "gaussian_noise", "noise_multiplier": 1.0}]
OWN_NOISE = [*CLIP, {"name": "local_gaussian", "epsilon": 2.0, "delta": 1e-5}]


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("ifca", {"transform": SUM_NOISE}, r"round.name: in this round a client tells the server which .* no epsilon"),
        ("ifca", {"transform": OWN_NOISE}, r"round.name: in this round a client tells the server which .* no epsilon"),
        ("ifca", {"local": {"batch": 8, "privacy": {"max_norm": 1.0, "noise_multiplier": 1.0}}}, r"a client tells"),
        ("clustered_fl", {"transform": SUM_NOISE}, r"protects a sum.* round.name = 'central'"),
        ("ifca", {"round": {"name": "ifca", "clusters": 9}}, r"round.clusters: 9 are more than the 8 clients"),
        ("ifca", {"round": {"name": "ifca", "clusters": 0}}, r"round.clusters: must be .*1"),
        ("ifca", {"algorithm": {"name": "scaffold", "lr": 0.1}}, r"keeps the mean of all clients.* Use round.name"),
        ("ifca", {"algorithm": {"name": "centralised", "lr": 0.1}}, r"round.name: Centralised trains on all data"),
        ("ifca", {"secure": {"protocol": "secagg"}, "transform": CLIP},
         r"secure: lets a server learn a sum"),
        ("ifca", {"broadcast": [{"name": "top_k", "share": 0.1}]}, r"broadcast: compresses what a server sends"),
        ("ifca", {"server": {"ema": 0.9}}, r"server.ema: averages the server's model"),
        ("ifca", {"attack": {"name": "sign_flip", "share": 0.25}}, r"attack.name: sign_flip replaces .* Use an attack"),
        ("ifca", {"reducer": "fltrust", "server": {"root": 0.1}}, r"reducer.name: compares updates to one"),
        ("hypcluster", {"round": {"name": "hypcluster", "scale": 0.0}}, r"round.scale: must be .*0"),
        ("clustered_fl", {"round": {"name": "clustered_fl", "mean_below": 2.0}}, r"round.mean_below: 2 must be below"),
        ("clustered_fl", {"round": {"name": "clustered_fl", "gamma": 1.0}}, r"round.gamma: must be .*1"),
        ("clustered_fl", {"round": {"name": "clustered_fl", "mean_below": -1.0}}, r"round.mean_below: must be .*0"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_advice(name: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, SpecError), match=words):
        set_up(Experiment.parse({**GIVEN, "round": ROUNDS[name], **changes}))


def test_private_updates_may_be_put_into_clusters_by_what_they_are(tmp_path: Path) -> None:
    """The split is made of what was noisy before: nothing more of a client is told."""
    done = run(tmp_path / "run", "clustered_fl", rounds=1, transform=OWN_NOISE)
    assert done.info["privacy"]["client"]["epsilon"] > 0
