"""Personal algorithms: what each becomes at the end of its knob, and each against plain torch, client by client."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import atoll
from atoll import tree
from atoll.algorithms.apfl import APFL
from atoll.algorithms.fedavg import FedAvg
from atoll.algorithms.fedpac_lite import FedPACLite
from atoll.algorithms.fedrep import FedRep
from atoll.algorithms.local_only import LocalOnly
from atoll.algorithms.mimelite import MimeLite
from atoll.algorithms.optimizers import sgd
from atoll.algorithms.partial_sharing import fedper
from atoll.algorithms.per_fedavg import PerFedAvg
from atoll.algorithms.pfedme import PFedMe
from atoll.core import Chain
from atoll.errors import ConfigError
from atoll.testing.assertions import distance
from atoll.testing.harness import Federation, some, train
from atoll.testing.problems import Problem, network, quadratics
from atoll.transforms.weights import EqualWeights
from tests.algorithms.test_algorithms import perceptron, plain, same

LR, ROUNDS = 0.1, 3
EVEN = Chain((EqualWeights(),))
Step = Callable[[nn.Module, nn.Module, Tensor, Tensor], None]


# What an algorithm becomes when its knob is at zero, or at its end.


@pytest.mark.parametrize(
    "build",
    [
        lambda t: MimeLite(t, LR, momentum=0.0),
        lambda t: PerFedAvg(t, LR, inner_lr=0.0),
        lambda t: PerFedAvg(t, LR, inner_lr=0.0, order="exact"),
        lambda t: PerFedAvg(t, LR, inner_lr=0.0, order="hessian_free"),
        lambda t: PFedMe(t, lr=LR / 0.08, inner_lr=0.04, lam=2.0, inner_steps=1),
    ],
    ids=["mimelite without momentum", "per_fedavg without a step", "exact", "free", "pfedme with one inner step"],
)
def test_it_is_fedavg_of_clients_that_count_alike(build: Any) -> None:
    problem = network()
    truth = train(problem, FedAvg(problem.task, LR), 4, some(3), chain=EVEN)
    same(train(problem, build(problem.task), 4, some(3)), truth)


@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_the_shared_model_of_apfl_is_fedavg_whatever_the_mixture(alpha: float) -> None:
    problem = network()
    truth = train(problem, FedAvg(problem.task, LR), 4, some(3))
    same(train(problem, APFL(problem.task, LR, alpha=alpha), 4, some(3)), truth)


def test_a_mixture_of_nothing_of_ones_own_is_the_shared_model() -> None:
    problem = quadratics()
    made = train(problem, APFL(problem.task, LR, alpha=0.0, adaptive=False), 4, some(3))
    assert distance(made.models()["params"], tree.stack(made.server["params"], 6)) < 1e-6


def test_a_mixture_of_ones_own_alone_is_local_training() -> None:
    problem = network()
    made = train(problem, APFL(problem.task, LR, alpha=1.0, adaptive=False), 4, some(3))
    alone = train(problem, LocalOnly(problem.task, LR), 4, some(3))
    assert distance(made.models(), alone.models()) < 2e-6


def test_a_head_that_is_everything_is_local_training() -> None:
    problem = plain(perceptron())
    made = train(problem, FedRep(problem.task, LR, body_steps=0, keep=tuple(problem.model["params"])), 4, some(3))
    assert distance(made.models(), train(problem, LocalOnly(problem.task, LR), 4, some(3)).models()) < 2e-6


def test_features_that_nothing_pulls_are_fedper() -> None:
    problem = network()
    a = train(problem, FedPACLite(problem.task, LR, mu=0.0), 4, some(3))
    b = train(problem, fedper(problem.task, LR), 4, some(3))
    same(a, b)
    assert distance(a.rows(), b.rows()) < 2e-6


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_while_the_head_learns_the_body_is_fixed_and_the_other_way_round(momentum: float) -> None:
    problem = plain(perceptron())
    made = train(problem, FedRep(problem.task, LR, head_steps=99, optimizer=sgd(momentum=momentum)), 3)
    assert distance(made.server["params"], problem.model["params"]) == 0.0
    rows = made.rows()["algorithm"]["params"]
    assert set(rows) == {"2.weight", "2.bias"}
    assert float(rows["2.weight"].std(0).max()) > 1e-3


# Against plain torch: every client one after the other, with modules and torch.autograd.


class ByTorch:
    """Clients as modules. `each` yields a client's number, its own module, and its batches."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.server = problem, perceptron()
        self.own = [perceptron() for _ in range(6)]

    def batches(self, client: int) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in self.problem.partition.of(client).split(3):
            yield self.problem.columns["x"][rows], self.problem.columns["y"][rows]

    def sizes(self) -> Tensor:
        return self.problem.partition.sizes.float()

    def average(self, clients: list[nn.Module], weights: Tensor) -> None:
        shares = weights / weights.sum()
        for name, p in self.server.named_parameters():
            p.data = sum(s * dict(c.named_parameters())[name].data for s, c in zip(shares, clients, strict=True))


def gradients(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters())))


def moved(model: nn.Module, along: list[Tensor], by: float) -> None:
    for p, g in zip(model.parameters(), along, strict=True):
        p.data = p.data + by * g


def params(model: nn.Module) -> dict[str, Tensor]:
    return {k: v.detach() for k, v in model.named_parameters()}


def agree(made: Federation, truth: ByTorch, own: bool = False) -> None:
    assert distance(made.server["params"], params(truth.server)) < 1e-6
    models = made.models()["params"]
    for c in range(6 if own else 0):
        assert distance(tree.rows(models, c), params(truth.own[c])) < 1e-6


def test_apfl_is_algorithm_one_of_its_paper() -> None:
    problem = plain(perceptron())
    made = train(problem, APFL(problem.task, LR, alpha=0.4), ROUNDS)
    truth, alphas, mine = ByTorch(problem), [0.4] * 6, [perceptron() for _ in range(6)]
    for _ in range(ROUNDS):
        shared = [copy.deepcopy(truth.server) for _ in range(6)]
        for c in range(6):
            for t, (x, y) in enumerate(truth.batches(c)):
                mix(truth.own[c], mine[c], shared[c], alphas[c])
                g, own = gradients(truth.own[c], x, y), list(mine[c].parameters())
                if t == 0:
                    pairs = zip(g, own, shared[c].parameters(), strict=True)
                    along = sum(float((a * (v - w).detach()).sum()) for a, v, w in pairs)
                    alphas[c] = min(max(alphas[c] - LR * along, 0.0), 1.0)
                moved(shared[c], gradients(shared[c], x, y), -LR)
                moved(mine[c], g, -LR * alphas[c])
        truth.average(shared, truth.sizes())
        for c in range(6):  # what a client predicts with before it trains again
            mix(truth.own[c], mine[c], truth.server, alphas[c])
    agree(made, truth, own=True)
    found = made.rows()["algorithm"]["alpha"]
    assert torch.allclose(found, torch.tensor(alphas), atol=1e-6)
    assert len({round(a, 4) for a in alphas}) == 6


def mix(into: nn.Module, own: nn.Module, shared: nn.Module, alpha: float) -> None:
    for p, v, w in zip(into.parameters(), own.parameters(), shared.parameters(), strict=True):
        p.data = alpha * v.data + (1 - alpha) * w.data


def test_pfedme_is_algorithm_one_of_its_paper() -> None:
    problem, lam, inner, steps, beta = plain(perceptron()), 3.0, 0.2, 4, 0.7
    made = train(problem, PFedMe(problem.task, LR, inner, lam, steps, beta), ROUNDS)
    truth = ByTorch(problem)
    for _ in range(ROUNDS):
        before, shared = copy.deepcopy(truth.server), [copy.deepcopy(truth.server) for _ in range(6)]
        for c in range(6):
            for x, y in truth.batches(c):
                theta = truth.own[c] = copy.deepcopy(shared[c])
                for _ in range(steps):
                    pull = [t - w for t, w in zip(theta.parameters(), shared[c].parameters(), strict=True)]
                    g = [a + lam * b.detach() for a, b in zip(gradients(theta, x, y), pull, strict=True)]
                    moved(theta, g, -inner)
                gap = [w.data - t.data for w, t in zip(shared[c].parameters(), theta.parameters(), strict=True)]
                moved(shared[c], gap, -LR * lam)
        truth.average(shared, torch.ones(6))
        mix(truth.server, truth.server, before, beta)
    agree(made, truth, own=True)


@pytest.mark.parametrize("order", ["first", "exact"])
def test_per_fedavg_is_the_gradient_through_a_step(order: Any) -> None:
    problem, inner = plain(perceptron()), 0.3
    made = train(problem, PerFedAvg(problem.task, LR, inner, order), ROUNDS)
    truth = ByTorch(problem)
    for _ in range(ROUNDS):
        shared = [copy.deepcopy(truth.server) for _ in range(6)]
        for c in range(6):
            for x, y in truth.batches(c):
                moved(shared[c], through_a_step(shared[c], x, y, inner, order == "exact"), -LR)
        truth.average(shared, torch.ones(6))
    agree(made, truth)


def through_a_step(model: nn.Module, x: Tensor, y: Tensor, inner: float, exact: bool) -> list[Tensor]:
    names, at = list(params(model)), list(model.parameters())
    g = torch.autograd.grad(F.cross_entropy(model(x), y), at, create_graph=exact)
    ahead = {n: p - inner * d for n, p, d in zip(names, at, g, strict=True)}
    loss = F.cross_entropy(torch.func.functional_call(model, ahead, (x,)), y)
    return list(torch.autograd.grad(loss, at if exact else list(ahead.values())))


def test_the_second_order_makes_a_difference() -> None:
    problem = plain(perceptron())
    a, b = (train(problem, PerFedAvg(problem.task, LR, 0.3, o), 2).server["params"] for o in ("first", "exact"))
    assert distance(a, b) > 1e-3


@pytest.mark.parametrize("delta", [1.0, 0.01])
def test_without_a_hessian_it_is_exact_on_quadratics_whatever_the_difference(delta: float) -> None:
    """Whose gradients are linear, so that a difference of them is the Hessian's product."""
    problem = quadratics()
    free = train(problem, PerFedAvg(problem.task, LR, 0.3, "hessian_free", delta=delta), ROUNDS)
    exact, first = (train(problem, PerFedAvg(problem.task, LR, 0.3, order), ROUNDS) for order in ("exact", "first"))
    assert distance(free.server["params"], exact.server["params"]) < 1e-5
    assert distance(free.server["params"], first.server["params"]) > 1e-2


def test_without_a_hessian_it_nears_the_exact_product_of_plain_torch() -> None:
    """With delta^2: (I - inner H) g, H from torch.autograd.functional.hvp, client after client."""
    problem, inner = plain(perceptron()), 0.3
    truth = ByTorch(problem)
    for _ in range(ROUNDS):
        shared = [copy.deepcopy(truth.server) for _ in range(6)]
        for c in range(6):
            for x, y in truth.batches(c):
                moved(shared[c], less_the_hessians_product(shared[c], x, y, inner), -LR)
        truth.average(shared, torch.ones(6))
    want = {name: p.detach() for name, p in params(truth.server).items()}
    gaps = [
        distance(
            train(problem, PerFedAvg(problem.task, LR, inner, "hessian_free", delta=d), ROUNDS).server["params"], want
        )
        for d in (0.4, 0.1, 0.01)
    ]
    assert gaps[2] < 1e-5
    assert gaps[1] < gaps[0] / 8  # a quarter of delta: a sixteenth, but for higher orders


def less_the_hessians_product(model: nn.Module, x: Tensor, y: Tensor, inner: float) -> list[Tensor]:
    names, at = list(params(model)), tuple(p.detach() for p in model.parameters())

    def loss(*values: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(model, dict(zip(names, values, strict=True)), (x,)), y)

    g = through_a_step(model, x, y, inner, exact=False)
    _, product = torch.autograd.functional.hvp(loss, at, tuple(g))
    return [a - inner * b for a, b in zip(g, product, strict=True)]


def test_a_difference_that_a_schedule_brings_to_nothing_is_refused(tmp_path: Path) -> None:
    schedule = {"name": "cosine", "start": 0.01, "over": 2}
    with pytest.raises(ConfigError, match=r"algorithm.delta: is divided by"):
        atoll.run({**given(name="per_fedavg", delta=schedule), "rounds": 3}, tmp_path / "run")


@pytest.mark.parametrize(("head_steps", "momentum"), [(2, 0.0), (1, 0.9)])
def test_fedrep_takes_turns(head_steps: int, momentum: float) -> None:
    problem = plain(perceptron())
    optimizer = sgd(momentum=momentum)
    made = train(problem, FedRep(problem.task, LR, head_steps, body_steps=1, optimizer=optimizer), ROUNDS)
    truth = ByTorch(problem)
    for _ in range(ROUNDS):
        for c in range(6):
            model = truth.own[c]
            model[0].load_state_dict(truth.server[0].state_dict())
            head, body = (torch.optim.SGD(part.parameters(), LR, momentum) for part in (model[2], model[0]))
            for t, (x, y) in enumerate(truth.batches(c)):
                model.zero_grad()
                F.cross_entropy(model(x), y).backward()
                (head if t % (head_steps + 1) < head_steps else body).step()
        last = copy.deepcopy(truth.server[2])
        truth.average(truth.own, truth.sizes())
        truth.server[2].load_state_dict(last.state_dict())
        for c in range(6):
            truth.own[c][0].load_state_dict(truth.server[0].state_dict())
    agree(made, truth, own=True)


def test_fedpac_lite_draws_features_to_the_class_means_of_all() -> None:
    problem, mu = plain(perceptron()), 0.8
    made = train(problem, FedPACLite(problem.task, LR, mu), ROUNDS)
    truth, means, shown = ByTorch(problem), torch.zeros(3, 4), torch.zeros(3)
    for _ in range(ROUNDS):
        sums, counts = torch.zeros(3, 4), torch.zeros(3)
        for c in range(6):
            model = truth.own[c]
            model[0].load_state_dict(truth.server[0].state_dict())
            for x, y in truth.batches(c):
                apart = (((model[:2](x) - means[y]) ** 2).mean(1) * shown[y]).mean()
                loss = F.cross_entropy(model(x), y) + mu * apart
                moved(model, list(torch.autograd.grad(loss, list(model.parameters()))), -LR)
                sums.index_add_(0, y, model[:2](x).detach())
                counts.index_add_(0, y, torch.ones(len(y)))
        head = copy.deepcopy(truth.server[2])
        truth.average(truth.own, truth.sizes())
        truth.server[2].load_state_dict(head.state_dict())
        means, shown = sums / counts[:, None], torch.ones(3)
    for c in range(6):
        truth.own[c][0].load_state_dict(truth.server[0].state_dict())
    agree(made, truth, own=True)
    assert torch.allclose(made.server["means"], means, atol=1e-6)


def test_a_class_that_nobody_showed_in_a_round_keeps_its_mean() -> None:
    problem = plain(perceptron())
    y = torch.where(torch.arange(len(problem.columns["y"])) < 2, 2, problem.columns["y"] % 2)  # client 0 alone has 2
    problem = Problem(problem.task, problem.model, {**problem.columns, "y": y}, problem.partition, 3)
    first = train(problem, FedPACLite(problem.task, LR), 1)
    then = train(problem, FedPACLite(problem.task, LR), 2, lambda r: range(6) if r == 0 else [1, 2])
    assert torch.equal(then.server["means"][2], first.server["means"][2])
    assert not torch.equal(then.server["means"][0], first.server["means"][0])
    assert train(problem, FedPACLite(problem.task, LR), 1, lambda r: [1, 2]).server["shown"].tolist() == [1, 1, 0]


def test_mimelite_is_algorithm_one_of_its_paper_with_momentum() -> None:
    problem, beta = plain(perceptron()), 0.6
    made = train(problem, MimeLite(problem.task, LR, beta), ROUNDS)
    truth = ByTorch(problem)
    m = [torch.zeros_like(p) for p in truth.server.parameters()]
    for _ in range(ROUNDS):
        shared, full = [copy.deepcopy(truth.server) for _ in range(6)], []
        for c in range(6):
            rows = problem.partition.of(c)
            full.append(gradients(truth.server, problem.columns["x"][rows], problem.columns["y"][rows]))
            for x, y in truth.batches(c):
                g = [(1 - beta) * a + beta * b for a, b in zip(gradients(shared[c], x, y), m, strict=True)]
                moved(shared[c], g, -LR)
        truth.average(shared, torch.ones(6))
        m = [(1 - beta) * torch.stack(gs).mean(0) + beta * b for gs, b in zip(zip(*full, strict=True), m, strict=True)]
    agree(made, truth)


# What cannot be.


def given(**algorithm: Any) -> dict[str, Any]:
    return {
        "rounds": 1,
        "data": "digits",
        "partition": {"name": "iid", "clients": 4},
        "local": {"max_steps": 2, "batch": 8},
        "algorithm": {"lr": 0.1, **algorithm},
        "engine": "vector",
    }


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ({"name": "apfl", "alpha": 1.5}, r"algorithm.alpha: must be .*1"),
        ({"name": "fedrep", "head_steps": 0}, r"algorithm.head_steps: must be .*1"),
        ({"name": "fedrep", "keep": ["nothing"]}, r"algorithm.keep: the model has no 'nothing'"),
        ({"name": "pfedme", "lam": 0.0}, r"algorithm.lam: must be .*0"),
        ({"name": "pfedme", "inner_steps": 0}, r"algorithm.inner_steps: must be .*1"),
        ({"name": "per_fedavg", "order": "second"}, r"algorithm.order: must be"),
        ({"name": "mimelite", "momentum": 1.0}, r"algorithm.momentum: must be .*1"),
        ({"name": "fedpac_lite", "mu": -1.0}, r"algorithm.mu: must be .*0"),
    ],
)
def test_a_setting_out_of_range_is_refused(algorithm: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        atoll.run(given(**algorithm), tmp_path / "run")


PRIVATE = {"max_norm": 1.0, "noise_multiplier": 1.0, "sampling": "poisson"}


@pytest.mark.parametrize("name", ["apfl", "pfedme", "per_fedavg", "mimelite", "fedpac_lite"])
def test_noise_measured_for_one_gradient_refuses_what_reads_more(name: str, tmp_path: Path) -> None:
    file = given(name=name)
    file["local"] = {"batch": 8, "privacy": PRIVATE}
    with pytest.raises(ConfigError, match=r"local.privacy: .* Use algorithm.name = 'fedavg'"):
        atoll.run(file, tmp_path / "run")


def test_regression_has_one_mean_of_features(tmp_path: Path) -> None:
    x = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
    run = atoll.simulate(
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)),
        (x, x.sum(1, keepdim=True)),
        clients=list(torch.arange(24).split(6)),
        algorithm={"name": "fedpac_lite", "lr": 0.05},
        rounds=2,
        batch=3,
        out=tmp_path / "run",
    )
    assert run.status == "finished"
