"""Algorithms by identity: what must each one become when its knob is at zero, and what do the formulas give by hand?"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import atoll
from atoll import rng, tree
from atoll.algorithms.adafedprox import AdaFedProx
from atoll.algorithms.centralised import Centralised
from atoll.algorithms.ditto import Ditto
from atoll.algorithms.fedavg import FedAvg
from atoll.algorithms.feddyn import FedDyn
from atoll.algorithms.fednova import FedNova
from atoll.algorithms.fedopt import fedadagrad, fedadam, fedavgm, fedyogi
from atoll.algorithms.fedprox import FedProx
from atoll.algorithms.fedsgd import FedSGD
from atoll.algorithms.local import move
from atoll.algorithms.local_only import LocalOnly
from atoll.algorithms.moon import Moon
from atoll.algorithms.optimizers import EffectiveSteps, Momentum, adam, sgd
from atoll.algorithms.partial_sharing import fedbn, fedper
from atoll.algorithms.reptile import reptile
from atoll.algorithms.scaffold import Scaffold
from atoll.algorithms.wrappers import LocalStatistics, Statistics
from atoll.core import Algorithm, Chain, Total
from atoll.data import Partition
from atoll.errors import ConfigError
from atoll.reducers import Collect
from atoll.tasks import Classification, Supervised
from atoll.testing.assertions import distance
from atoll.testing.harness import Federation, federation, some, train
from atoll.testing.problems import SIZES, Problem, flat, network, quadratics
from atoll.transforms.weights import EqualWeights
from atoll.tree import Tree

LR = 0.1


def plain(model: nn.Module, sizes: Sequence[int] = SIZES, batch: int = 3, outputs: int = 3) -> Problem:
    """A problem for any model that takes five numbers, on random data."""
    total = sum(sizes)
    x = rng.normal(rng.key("x"), (total, 5))
    y = rng.bits(rng.key("y"), (total,)) % outputs
    task = Supervised(model, Classification(outputs), {"x": x[:4], "y": y[:4], "mask": torch.ones(4)})
    rows = torch.arange(total).split(list(sizes))
    return Problem(task, task.init(rng.key(0)), {"x": x, "y": y}, Partition.from_lists(rows), batch)


def perceptron() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def normed() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))


def deltas(problem: Problem, algorithm: Algorithm, ids: Sequence[int]) -> tuple[Tree, Tensor]:
    """Every client's change in the first round, in the order given, and its weight."""
    made = federation(problem, algorithm, reducer=Collect())
    result = made.engine.run(made.request(ids))
    updates, back = result.partial.updates, torch.argsort(result.order)
    return tree.rows(updates.value["delta"], back), updates.weight[back]


def same(a: Federation, b: Federation, tolerance: float = 2e-6) -> None:
    for part in ("params", "buffers"):
        assert distance(a.server[part], b.server[part]) < tolerance


# What an algorithm becomes when its knob is at zero.

ZEROS = {
    "fedprox with mu = 0": lambda t: FedProx(t, LR, mu=0.0),
    "moon with mu = 0": lambda t: Moon(t, LR, mu=0.0),
    "fedavgm without momentum": lambda t: fedavgm(t, LR, momentum=0.0),
    "adafedprox while mu is 0": lambda t: AdaFedProx(t, LR, mu=0.0, change=1e-9),
    "the shared model of ditto": lambda t: Ditto(t, LR, mu=0.0),
    "the shared model of ditto, whatever mu": lambda t: Ditto(t, LR, mu=0.7),
}


@pytest.mark.parametrize("name", ZEROS)
def test_it_is_fedavg(name: str) -> None:
    problem = network()
    truth = train(problem, FedAvg(problem.task, LR), 4, some(3))
    same(train(problem, ZEROS[name](problem.task), 4, some(3)), truth)


def test_fednova_is_fedavg_where_all_take_as_many_steps() -> None:
    problem, both = quadratics(), lambda r: [1, 5]  # five and six examples, three steps each
    same(train(problem, FedNova(problem.task, LR), 4, both), train(problem, FedAvg(problem.task, LR), 4, both))


def test_fednova_is_not_fedavg_where_steps_differ() -> None:
    problem, both = quadratics(), lambda r: [0, 3]
    a, b = (train(problem, x(problem.task, LR), 2, both).server["params"] for x in (FedNova, FedAvg))
    assert distance(a, b) > 1e-2


def test_reptile_all_the_way_is_fedavg_for_clients_of_one_size() -> None:
    problem = plain(perceptron(), sizes=[4] * 6)
    truth = train(problem, FedAvg(problem.task, LR), 3, some(3))
    same(train(problem, reptile(problem.task, LR, server_lr=1.0), 3, some(3)), truth)


def test_reptile_goes_a_share_of_the_way_to_the_plain_mean() -> None:
    problem = quadratics()
    change, _ = deltas(problem, FedAvg(problem.task, LR), range(6))
    want = tree.map(lambda w, d: w + 0.3 * d.mean(0), problem.model["params"], change)
    assert distance(train(problem, reptile(problem.task, LR, server_lr=0.3), 1).server["params"], want) < 1e-6


@pytest.mark.parametrize("option", ["I", "II"])
def test_the_first_round_of_scaffold_is_unweighted_fedavg(option: Any) -> None:
    problem = network()
    first = train(problem, Scaffold(problem.task, LR, 6, option), 1, some(3))
    same(first, train(problem, FedAvg(problem.task, LR), 1, some(3), chain=Chain((EqualWeights(),))))


def test_feddyn_first_overshoots_the_mean_by_as_much_again() -> None:
    """h = -alpha mean(w_i - x), so x <- mean(w_i) - h / alpha = 2 mean(w_i) - x in the first round of all."""
    problem, alpha = quadratics(), 0.5
    change, _ = deltas(problem, FedDyn(problem.task, LR, 6, alpha), range(6))
    want = tree.map(lambda w, d: w + 2 * d.mean(0), problem.model["params"], change)
    assert distance(train(problem, FedDyn(problem.task, LR, 6, alpha), 1).server["params"], want) < 1e-6


def test_feddyn_pulls_as_fedprox_does_in_the_first_round() -> None:
    problem = quadratics()
    a, _ = deltas(problem, FedDyn(problem.task, LR, 6, alpha=0.4), range(6))
    b, _ = deltas(problem, FedProx(problem.task, LR, mu=0.4), range(6))
    assert distance(a, b) < 1e-6


@pytest.mark.parametrize(
    ("build", "control"),
    [
        (lambda t: Scaffold(t, LR, 6), "control"),
        (lambda t: Scaffold(t, LR, 6, "I"), "control"),
        (lambda t: Scaffold(t, LR, 6, optimizer=Momentum(0.9)), "control"),
        (lambda t: FedDyn(t, LR, 6, alpha=0.3), "h"),
    ],
)
def test_the_servers_control_is_the_mean_over_all_clients_at_any_time(build: Any, control: str) -> None:
    problem = network()
    made = federation(problem, build(problem.task))
    for r in range(4):
        made.run(some(2)(r))
        mean = tree.map(lambda x: x.mean(0), made.rows()["algorithm"][control])
        assert distance(made.server[control], mean) < 1e-5


def test_both_options_of_scaffold_agree_on_one_step_of_all_examples() -> None:
    problem = replace(quadratics(), batch=10)
    a, b = (train(problem, Scaffold(problem.task, LR, 6, option), 3, some(3)) for option in ("I", "II"))
    assert distance(a.rows(), b.rows()) < 1e-5
    same(a, b, 1e-5)


def test_scaffolds_second_option_counts_gradients_under_momentum() -> None:
    """On a constant gradient the control is that gradient, however much momentum adds to the change."""
    draw = torch.ones(4)
    optimizer, state = Momentum(0.9), {"p": draw * 0}
    moved, opt = state, optimizer.init(state)
    counted = EffectiveSteps(optimizer).init(state)
    for _ in range(6):
        moved, opt = optimizer.step(moved, {"p": draw}, opt, LR)
        counted = EffectiveSteps(optimizer).add(counted)
    assert torch.allclose(-moved["p"] / (counted["steps"] * LR), draw)


# FedNova.


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_a_change_is_worth_what_wang_et_al_say(rho: float) -> None:
    optimizer = sgd(momentum=rho)
    found = EffectiveSteps(optimizer).init({"w": torch.zeros(2)})
    for t in range(1, 11):
        found = EffectiveSteps(optimizer).add(found)
        formula = (t - rho * (1 - rho**t) / (1 - rho)) / (1 - rho)
        assert float(found["steps"]) == pytest.approx(formula, rel=1e-5)


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_fednova_by_hand(rho: float) -> None:
    problem, ids = quadratics(), [0, 3, 4, 5]
    steps = torch.tensor([1.0, 4.0, 2.0, 3.0])
    change, n = deltas(problem, FedAvg(problem.task, LR, sgd(momentum=rho)), ids)
    a = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
    p = n / n.sum()
    assert torch.equal(n, torch.tensor([2.0, 7.0, 4.0, 6.0]))
    want = tree.map(lambda w, d: w + (p * a).sum() * ((p / a)[:, None] * d).sum(0), problem.model["params"], change)
    made = train(problem, FedNova(problem.task, LR, sgd(momentum=rho)), 1, lambda r: ids)
    assert distance(made.server["params"], want) < 1e-5


@pytest.mark.parametrize("build", [lambda t: FedNova(t, LR, adam()), lambda t: Scaffold(t, LR, 6, optimizer=adam())])
def test_what_counts_gradients_refuses_adam(build: Any) -> None:
    with pytest.raises(ConfigError, match="optimizer = 'sgd'"):
        build(quadratics().task)


@pytest.mark.parametrize("option", ["I", "II"])
def test_a_learning_rate_that_ends_at_zero_leaves_scaffold_where_it_is(option: str) -> None:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(24, 3, generator=g), torch.randint(0, 2, (24,), generator=g)
    lr = {"name": "cosine", "start": 0.1, "over": 3}
    done = atoll.simulate(
        nn.Linear(3, 2),
        (x, y),
        clients=list(torch.arange(24).split(6)),
        algorithm={"name": "scaffold", "lr": lr, "option": option},
        rounds=5,
        batch=3,
    )
    assert [e["settings"]["algorithm.lr"] > 0 for e in done.history] == [True, True, True, False, False]
    assert [e["model"] for e in done.history[3:]] == [done.history[2]["model"]] * 2
    assert all(torch.isfinite(v).all() for v in done.params.values())


def test_scaffolds_first_option_takes_adam() -> None:
    assert Scaffold(quadratics().task, LR, 6, option="I", optimizer=adam())


# Server optimizers (Reddi et al., 2021, algorithm 2).


def _second_moment(kind: str, v: Tensor, d: Tensor) -> Tensor:
    if kind == "adagrad":
        return v + d**2
    if kind == "adam":
        return 0.95 * v + 0.05 * d**2
    return v - 0.05 * d**2 * torch.sign(v - d**2)


@pytest.mark.parametrize(("kind", "build"), [("adagrad", fedadagrad), ("adam", fedadam), ("yogi", fedyogi)])
def test_server_optimizers_follow_algorithm_two(kind: str, build: Any) -> None:
    problem, tau, eta = quadratics(), 0.05, 0.1
    decay = {} if kind == "adagrad" else {"b2": 0.95}
    made = federation(problem, build(problem.task, LR, server_lr=eta, b1=0.8, tau=tau, **decay))
    x = {k: w.double() for k, w in problem.model["params"].items()}
    m, v = tree.zeros_like(x), tree.map(lambda w: 0 * w + tau**2, x)
    for r in range(3):
        now = replace(problem, model={**problem.model, "params": tree.map(Tensor.float, x)})
        change, n = deltas(now, FedAvg(problem.task, LR), some(3)(r))
        d = tree.map(lambda c, n=n: ((n / n.sum())[:, None] * c).sum(0).double(), change)
        m = tree.map(lambda m, d: 0.8 * m + 0.2 * d, m, d)
        v = tree.map(lambda v, d: _second_moment(kind, v, d), v, d)
        x = tree.map(lambda x, m, v: x + eta * m / (v.sqrt() + tau), x, m, v)
        made.run(some(3)(r))
        assert distance(made.server["params"], x) < 1e-5
    assert distance({"m": made.server["m"], "v": made.server["v"]}, {"m": m, "v": v}) < 1e-5


def test_server_momentum_by_hand() -> None:
    problem = quadratics()
    made = federation(problem, fedavgm(problem.task, LR, server_lr=0.7, momentum=0.6))
    x, b = problem.model["params"], tree.zeros_like(problem.model["params"])
    for r in range(3):
        now = replace(problem, model={**problem.model, "params": x})
        change, n = deltas(now, FedAvg(problem.task, LR), some(3)(r))
        b = tree.map(lambda b, c, n=n: 0.6 * b + ((n / n.sum())[:, None] * c).sum(0), b, change)
        x = tree.add_scaled(x, b, 0.7)
        made.run(some(3)(r))
        assert distance(made.server["params"], x) < 1e-5


# Against torch.optim.


def by_torch(
    model: nn.Module, x: Tensor, y: Tensor, batches: list[Tensor], rounds: int, **options: Any
) -> dict[str, Tensor]:
    """One optimizer that lives through all rounds."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), LR, **options)
    for _ in range(rounds):
        for rows in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return {k: v.detach() for k, v in model.state_dict().items()}


ALONE = ["fedavg", "fednova", "scaffold", "moon", "ditto", "adafedprox", "centralised"]


@pytest.mark.parametrize("name", ALONE)
def test_one_client_everywhere_is_plain_sgd(name: str, tmp_path: Path) -> None:
    x, y = rng.normal(rng.key("x"), (11, 5)), rng.bits(rng.key("y"), (11,)) % 3
    run = atoll.simulate(
        perceptron(),
        (x, y),
        clients=[range(11)],
        algorithm={"name": name, "lr": LR},
        rounds=4,
        batch=4,
        shuffle=False,
        engine={"name": "vector"},
        evaluate={"clients": 0},
        out=tmp_path / "run",
    )
    truth = by_torch(perceptron(), x, y, list(torch.arange(11).split(4)), 4)
    assert distance(run.params, truth) < 2e-6


@pytest.mark.parametrize("batch", [2, 5, 0])
def test_fedsgd_is_one_step_of_all_examples_whatever_the_batch(batch: int) -> None:
    problem = replace(plain(perceptron()), batch=batch)
    made = train(problem, FedSGD(problem.task, LR), 3)
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), LR)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(problem.columns["x"]), problem.columns["y"]).backward()
        optimizer.step()
    assert distance(made.server["params"], dict(model.named_parameters())) < 2e-6


def test_centralised_training_is_one_torch_run_over_the_pooled_data() -> None:
    problem = plain(perceptron(), batch=4)
    options = {"momentum": 0.9, "weight_decay": 0.01}
    made = train(problem, Centralised(problem.task, LR, sgd(**options)), 4)
    rows = list(torch.arange(sum(SIZES)).split(4))
    truth = by_torch(perceptron(), problem.columns["x"], problem.columns["y"], rows, 4, **options)
    assert distance(made.server["params"], truth) < 5e-6


def test_local_training_is_one_torch_run_for_each_client() -> None:
    problem = plain(perceptron())
    made = train(problem, LocalOnly(problem.task, LR, sgd(momentum=0.9)), 4)
    models = made.models()["params"]
    for c in range(6):
        rows = list(problem.partition.of(c).split(3))
        truth = by_torch(perceptron(), problem.columns["x"], problem.columns["y"], rows, 4, momentum=0.9)
        assert distance(tree.rows(models, c), truth) < 2e-6
    assert distance(made.server, problem.model) == 0.0


# Models of one's own.


def test_dittos_own_models_at_mu_zero_are_local_training() -> None:
    problem = network()
    ditto = train(problem, Ditto(problem.task, LR, mu=0.0), 4, some(3))
    alone = train(problem, LocalOnly(problem.task, LR), 4, some(3))
    assert distance(ditto.models(), alone.models()) < 2e-6


def test_dittos_own_model_is_pulled_towards_what_was_sent() -> None:
    problem, mu = quadratics().only(3), 0.5
    made = train(problem, Ditto(problem.task, LR, mu=mu), 2)
    row = problem.partition.of(0)[0]
    a, b = problem.columns["x"][row].reshape(4, 4), problem.columns["y"][row]
    shared = own = flat(problem.model["params"])
    for _ in range(2):
        sent = shared
        for _ in range(4):
            shared = shared - LR * a @ (shared - b)
            own = own - LR * (a @ (own - b) + mu * (own - sent))
    assert distance({"w": flat(tree.rows(made.models()["params"], 0))}, {"w": own}) < 1e-5


def test_keeping_everything_is_local_training() -> None:
    problem = plain(perceptron())
    everything = list(problem.model["params"])
    kept = train(problem, fedper(problem.task, LR, keep=everything), 4, some(3))
    alone = train(problem, LocalOnly(problem.task, LR), 4, some(3))
    assert distance(kept.models(), alone.models()) < 2e-6
    assert distance(kept.server["params"], problem.model["params"]) == 0.0


def test_fedper_shares_all_but_the_last_layer() -> None:
    problem = plain(perceptron())
    made = train(problem, fedper(problem.task, LR), 3)
    assert set(made.rows()["algorithm"]["params"]) == {"2.weight", "2.bias"}
    models = made.models()["params"]
    for name in ("0.weight", "0.bias"):
        assert float(models[name].std(0).max()) == 0.0
        assert distance({"p": made.server["params"][name]}, {"p": problem.model["params"][name]}) > 1e-3
    for name in ("2.weight", "2.bias"):
        assert float(models[name].std(0).max()) > 1e-3
        assert torch.equal(made.server["params"][name], problem.model["params"][name])


def test_fedbn_shares_all_but_normalisation() -> None:
    problem = network()
    made = train(problem, fedbn(problem.task, LR), 3)
    own = made.rows()["algorithm"]
    assert set(own["params"]) == {"1.weight", "1.bias"}
    assert set(own["buffers"]) == {"1.running_mean", "1.running_var"}
    models = made.models()
    for part, name in (("params", "1.weight"), ("buffers", "1.running_mean")):
        assert float(models[part][name].std(0).max()) > 1e-3
        assert torch.equal(made.server[part][name], problem.model[part][name])
    assert float(models["params"]["0.weight"].std(0).max()) == 0.0


def test_fedbn_with_everything_kept_apart_but_norms_shared_is_fedper() -> None:
    problem = network()
    head = ["4.weight", "4.bias"]
    a = train(problem, fedbn(problem.task, LR, keep=head), 3, some(3))
    b = train(problem, fedper(problem.task, LR, keep=head), 3, some(3))
    same(a, b)
    assert distance(a.rows(), b.rows()) < 2e-6


@pytest.mark.parametrize("build", [fedper, fedbn])
def test_a_name_that_the_model_does_not_have_is_refused(build: Any) -> None:
    problem = network()
    with pytest.raises(ConfigError, match=r"algorithm.keep: the model has no 'fc9.weight'. It has 0.weight, 0.bias"):
        build(problem.task, LR, keep=["fc9.weight"]).client_state(problem.model)


# Formulas by hand.


def test_fedprox_pulls_back_to_what_was_sent() -> None:
    problem, mu = quadratics().only(3), 0.5
    row = problem.partition.of(0)[0]
    a, b = problem.columns["x"][row].reshape(4, 4), problem.columns["y"][row]
    sent = w = flat(problem.model["params"])
    for _ in range(4):
        w = w - LR * (a @ (w - b) + mu * (w - sent))
    made = train(problem, FedProx(problem.task, LR, mu), 1)
    assert distance({"w": flat(made.server["params"])}, {"w": w}) < 1e-5


@pytest.mark.parametrize("build", [perceptron, normed])
def test_moon_adds_the_contrast_of_li_et_al(build: Callable[[], nn.Module]) -> None:
    """The fixed models are in evaluation mode, as in the authors' code: it matters where there is BatchNorm."""
    problem, mu, heat = plain(build(), sizes=[3, 4]), 2.0, 0.7
    moon = Moon(problem.task, LR, mu=mu, temperature=heat)
    made = federation(problem, moon)
    made.run([0, 1])
    own = tree.rows(made.rows()["algorithm"]["last"], 0)
    model, server, last = build().train(), build().eval(), build().eval()
    for module, held in ((model, made.server), (server, made.server), (last, own)):
        module.load_state_dict({**held["params"], **held["buffers"]}, strict=False)
    x, y = problem.columns["x"][:3], problem.columns["y"][:3]

    def features(m: nn.Module) -> Tensor:
        return m[:-1](x)  # type: ignore[index]

    z = features(model)
    near = torch.exp(F.cosine_similarity(z, features(server).detach()) / heat)
    far = torch.exp(F.cosine_similarity(z, features(last).detach()) / heat)
    loss = F.cross_entropy(model(x), y) + mu * -torch.log(near / (near + far)).mean()
    gradient = torch.autograd.grad(loss, list(model.parameters()))
    want = {k: p - LR * g for (k, p), g in zip(made.server["params"].items(), gradient, strict=True)}
    found = train_once(made, 0)
    assert distance(found, want) < 1e-6


def train_once(made: Federation, client: int) -> Tree:
    """The model of one client after its round."""
    before = made.server["params"]
    program = replace(made.program, reducer=Collect())
    result = made.engine.run(replace(made.request([client]), program=program))
    return tree.add(before, tree.rows(result.partial.updates.value["delta"], 0))


def test_adafedprox_raises_mu_with_the_loss_and_lowers_it_after_patience() -> None:
    problem = quadratics()
    ada = AdaFedProx(problem.task, LR, mu=0.2, change=0.1, patience=2)
    key = rng.key("server")
    server = ada.init(problem.model, key)
    still = tree.zeros_like(problem.model["params"])
    seen = []
    for loss in (5.0, 4.0, 3.0, 6.0, 5.0, 4.0, 4.0, 3.0):
        value = {"delta": still, "buffers": tree.zeros_like(problem.model["buffers"]), "loss": torch.tensor(loss)}
        server = ada.apply(server, Total(value, torch.ones(()), torch.ones(())), key)
        seen.append(round(float(server["mu"]), 4))
    assert seen == [0.2, 0.2, 0.1, 0.2, 0.2, 0.1, 0.1, 0.1]  # the first loss is no fall
    assert (
        float(
            ada.apply(
                {**server, "mu": torch.tensor(0.05), "falls": torch.tensor(1.0)},
                Total({**value, "loss": torch.tensor(1.0)}, torch.ones(()), torch.ones(())),
                key,
            )["mu"]
        )
        == 0.0
    )
    for loss in range(100):  # rises all the time
        total = Total({**value, "loss": torch.tensor(float(loss))}, torch.ones(()), torch.ones(()))
        server = ada.apply(server, total, key)
    assert float(server["mu"]) == ada.most == 1.0


def test_server_lr_scales_the_step_and_not_the_statistics() -> None:
    problem = network()
    whole, half = (train(problem, FedAvg(problem.task, LR, server_lr=s), 1) for s in (1.0, 0.5))
    step = tree.sub(whole.server["params"], problem.model["params"])
    assert distance(half.server["params"], tree.add_scaled(problem.model["params"], step, 0.5)) < 1e-6
    assert distance(half.server["buffers"], whole.server["buffers"]) < 1e-7


def test_a_counter_among_the_buffers_stays_a_whole_number() -> None:
    server = {"params": {"w": torch.zeros(2)}, "buffers": {"calls": torch.tensor(3)}}
    moved = move(server, {"delta": {"w": torch.ones(2)}, "buffers": {"calls": torch.tensor(2.6)}}, 1.0)
    assert moved["buffers"]["calls"].dtype == torch.int64
    assert int(moved["buffers"]["calls"]) == 6  # the nearest one: a mean of 3 may come as 2.9999998


def test_statistics_that_stay_local_are_not_sent_and_not_averaged() -> None:
    problem = network()
    made = train(problem, LocalStatistics(FedAvg(problem.task, LR)), 3, some(3))
    assert distance(made.server["buffers"], problem.model["buffers"]) == 0.0
    rows = made.rows()["algorithm"]["buffers"]["1.running_mean"]
    assert float(rows.std(0).max()) > 1e-3
    truth = train(problem, FedAvg(problem.task, LR), 1, some(3))
    first = train(problem, LocalStatistics(FedAvg(problem.task, LR)), 1, some(3))
    assert distance(first.server["params"], truth.server["params"]) < 1e-6


def test_reestimated_statistics_are_those_of_all_examples_together() -> None:
    problem = network()
    made = train(problem, Statistics(problem.task), 1, some(4))
    w, b = problem.model["params"]["0.weight"].double(), problem.model["params"]["0.bias"].double()
    rows = torch.cat([problem.partition.of(c) for c in some(4)(0)])
    h = problem.columns["x"][rows].double() @ w.T + b
    found = made.server["buffers"]
    assert np.allclose(found["1.running_mean"], h.mean(0), atol=1e-6)
    assert np.allclose(found["1.running_var"], h.var(0), atol=1e-6)


def test_the_last_model_of_a_newcomer_is_the_initial_one() -> None:
    problem = plain(perceptron(), sizes=[3, 4, 5])
    made = train(problem, Moon(problem.task, LR), 3, lambda r: [0, 1])
    kept = made.rows()["algorithm"]["last"]["params"]
    assert distance(tree.rows(kept, 2), problem.model["params"]) == 0.0
    assert distance(tree.rows(kept, 0), problem.model["params"]) > 1e-3


def test_features_of_a_model_that_predicts_have_no_dropout_and_running_statistics() -> None:
    problem = network()
    x, mask = problem.columns["x"][:5], torch.ones(5)
    params, buffers = problem.model["params"], {**problem.model["buffers"], "1.running_mean": torch.full((6,), 0.5)}
    z = problem.task.features(params, buffers, {"x": x, "mask": mask, "key": rng.key(0)}, training=False)
    h = F.linear(x, params["0.weight"], params["0.bias"])
    norm = F.batch_norm(h, buffers["1.running_mean"], buffers["1.running_var"], params["1.weight"], params["1.bias"])
    assert torch.allclose(z, torch.tanh(norm), atol=1e-6)


def simulate(algorithm: dict[str, Any], **more: Any) -> atoll.Run:
    problem = plain(perceptron())
    rows = [problem.partition.of(c).tolist() for c in range(6)]
    data = problem.columns["x"], problem.columns["y"]
    return atoll.simulate(
        perceptron(), data, clients=rows, algorithm=algorithm, rounds=6, batch=3, engine="loop", **more
    )


def test_the_mu_of_every_line_is_the_one_that_the_round_used() -> None:
    run = simulate({"name": "adafedprox", "lr": 0.3, "mu": 0.5, "patience": 1, "change": 0.2})
    used, losses = [e["settings"]["algorithm.mu"] for e in run.history], [e["train_loss"] for e in run.history]
    mu, want = 0.5, [0.5]
    for last, loss in zip([np.inf, *losses], losses[:-1], strict=False):
        step = 0.0 if not np.isfinite(last) or loss == last else 0.2 if loss > last else -0.2
        mu = min(max(mu + step, 0.0), 1.0)
        want.append(mu)
    assert used == pytest.approx(want, abs=1e-6)
    assert len(set(used)) > 1


@pytest.mark.parametrize("algorithm", [{"name": "feddyn", "alpha": None}, {"name": "moon", "temperature": None}])
def test_a_schedule_that_ends_at_zero_is_refused_where_it_is_divided_by(algorithm: dict[str, Any]) -> None:
    (name,) = (k for k, v in algorithm.items() if v is None)
    falling = {"name": "cosine", "start": 0.1, "over": 4}
    with pytest.raises(ConfigError, match=rf"algorithm.{name}: .* reaches 0. Give the schedule an end above 0"):
        simulate({**algorithm, "lr": 0.1, name: falling})
    assert simulate({**algorithm, "lr": 0.1, name: {**falling, "end": 0.01}}).status == "finished"
