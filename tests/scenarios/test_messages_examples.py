"""FedAvg, gossip, a hierarchy and SecAgg by messages: the bits of their rounds; and between processes, one killed."""

import importlib.util
import os
import subprocess
import sys
from functools import reduce

import pytest
import torch

from atoll import tree
from atoll.errors import ConfigError
from atoll.experiment import Experiment, set_up
from atoll.messages import Ended, Faults, LocalTraining, answer, read_partial, run
from atoll.records import RunFolder
from atoll.runs import RunLoop
from atoll.testing import check_worker
from tests.support.paths import ROOT

FOLDER = ROOT / "examples" / "messages"


def example(name: str):
    spec = importlib.util.spec_from_file_location(f"messages_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def by_messages(module, experiment, **options) -> Ended:
    training = LocalTraining.of(experiment)
    return run({name: module.make(name, training) for name in module.topology().names}, module.topology(), **options)


def by_rounds(experiment, folder) -> RunLoop:
    loop = RunLoop(set_up(Experiment.parse(experiment), "cpu"), RunFolder(folder))
    for _ in range(experiment["rounds"]):
        loop.next_round()
    return loop


def same(a: tree.Tree, b: tree.Tree) -> bool:
    return tree.digest(a) == tree.digest(b)


@pytest.mark.parametrize(
    "algorithm", [{"name": "fedavg", "lr": 0.1}, {"name": "scaffold", "lr": 0.1}], ids=["fedavg", "scaffold"]
)
def test_fedavg_by_messages_is_the_round_bit_for_bit(algorithm, tmp_path) -> None:
    """Also an algorithm whose clients keep something."""
    module = example("fedavg")
    experiment = {**module.EXPERIMENT, "algorithm": algorithm}
    loop = by_rounds(experiment, tmp_path)
    model = by_messages(module, experiment).results["server"]
    assert same(model, loop.setup.round.model(loop.state.round))
    late = by_messages(module, experiment, faults=Faults(duplicate=0.5, delay=0.5, seed=1))
    assert same(late.results["server"], model)


def test_gossip_by_messages_is_the_round_bit_for_bit(tmp_path) -> None:
    module = example("gossip")
    loop = by_rounds(module.EXPERIMENT, tmp_path)
    done = by_messages(module, module.EXPERIMENT)
    for id, name in enumerate(module.topology().names):
        assert same(done.results[name], tree.rows(loop.state.round["server"], id))


def test_secagg_by_messages_is_the_round_bit_for_bit(tmp_path) -> None:
    module = example("secagg")
    loop = by_rounds(module.experiment(), tmp_path)
    done = by_messages(module, module.experiment())
    assert same(done.results["server"], loop.setup.round.model(loop.state.round))


def test_a_hierarchy_by_messages_is_sums_of_sums_bit_for_bit_and_fedavg_to_rounding(tmp_path) -> None:
    module = example("hierarchical")
    training = LocalTraining.of(module.EXPERIMENT)
    state = training.first_state()
    for number in range(training.rounds):  # by hand: each edge adds up its clients, the root adds up the edges
        broadcast = training.broadcast(number, state)
        bodies = [answer(training.train(number, id, broadcast)) for id in training.clients()]
        edges = [[int(name.removeprefix("client-")) for name in below] for below in module.EDGES.values()]
        parts = [reduce(lambda a, b: a.merge(b), [read_partial(bodies[id]["partial"]) for id in ids]) for ids in edges]
        trained = training.joined(bodies)
        summed = type(trained)(reduce(lambda a, b: a.merge(b), parts), trained.examples, trained.columns, trained.rows)
        state = training.step(number, state, summed)
    model = by_messages(module, module.EXPERIMENT).results["root"]
    assert same(model, training.model(state))
    central = by_rounds(module.EXPERIMENT, tmp_path)
    pairs = zip(tree.leaves(model), tree.leaves(central.setup.round.model(central.state.round)), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_hierarchy_by_messages_is_the_round_bit_for_bit(tmp_path) -> None:
    module = example("hierarchical")
    groups = [[int(name.removeprefix("client-")) for name in below] for below in module.EDGES.values()]
    loop = by_rounds({**module.EXPERIMENT, "round": {"name": "hierarchical", "groups": groups}}, tmp_path)
    done = by_messages(module, module.EXPERIMENT)
    assert same(done.results["root"], loop.setup.round.model(loop.state.round))


def test_a_hierarchy_with_one_edge_is_fedavg_bit_for_bit(tmp_path) -> None:
    module, training = example("hierarchical"), None
    edges = {"edge-0": [f"client-{id}" for id in range(6)]}
    training, topology = LocalTraining.of(module.EXPERIMENT), module.topology(edges)
    done = run({name: module.make(name, training, edges) for name in topology.names}, topology)
    loop = by_rounds(module.EXPERIMENT, tmp_path)
    assert same(done.results["root"], loop.setup.round.model(loop.state.round))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "gossip", "hierarchical", "secagg"])
def test_the_workers_of_the_examples_keep_to_the_contract(name: str) -> None:
    module = example(name)
    secure = {"secure": {"protocol": "secagg", "insecure_seed": True}}  # the same masks twice
    experiment = {**module.experiment(), **secure} if name == "secagg" else module.EXPERIMENT
    training = LocalTraining.of({**experiment, "rounds": 2})
    check_worker(lambda worker: module.make(worker, training), module.topology(), repeats=name != "secagg")


@pytest.mark.parametrize("table", [{"clock": {"seconds_per_step": 1.0}}, {"privacy": {"epsilon": 1.0}}], ids=str)
def test_what_workers_cannot_keep_is_refused(table) -> None:
    with pytest.raises(ConfigError, match=next(iter(table))):
        LocalTraining.of({**example("fedavg").EXPERIMENT, **table})


def started(name: str, *arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(FOLDER / f"{name}.py"), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "gossip", "hierarchical", "secagg"])
def test_processes_come_to_the_model_of_one_process(name: str) -> None:
    def models(said: str) -> list[str]:
        return [line for line in said.splitlines() if line.startswith(("model", "node"))]

    assert models(started(name, "--processes")) == models(started(name)) != []


@pytest.mark.slow
def test_a_client_that_is_killed_halfway_is_missing_from_then_on() -> None:
    """kill -9 when round 2 reaches it: the model is that of rounds whose cohorts it has left."""
    module = example("fedavg")
    training = LocalTraining.of(module.EXPERIMENT)
    state = training.first_state()
    for number in range(training.rounds):
        ids = [id for id in training.cohort(number) if id != 2 or number < 1]
        bodies = [answer(training.train(number, id, training.broadcast(number, state))) for id in ids]
        state = training.step(number, state, training.joined(bodies))
    said = started("fedavg", "--processes", "--kill", "client-2")
    assert "client-2: its process ended without a word (killed by SIGKILL)" in said
    assert f"model {tree.digest(training.model(state))}" in said
