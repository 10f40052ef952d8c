"""What becomes of BatchNorm in whole runs, against plain PyTorch on the same rows."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import atoll
from atoll import rng
from atoll.errors import ConfigError
from atoll.testing.assertions import distance

SIZES = (9, 20, 5, 17)  # in batches of 8, two end with a batch of one
ROWS = [rows.tolist() for rows in torch.arange(sum(SIZES)).split(list(SIZES))]
OWNER = torch.repeat_interleave(torch.arange(4), torch.tensor(SIZES))
X = rng.normal(rng.key("inputs"), (sum(SIZES), 6)) + 3.0 * OWNER[:, None]  # clients lie far apart
Y = rng.bits(rng.key("labels"), (sum(SIZES),)) % 3
ENGINES = ["loop", {"name": "threads", "workers": 2}, "vector"]


def seeded(*layers: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(*(layer() for layer in layers))


def dense(features: int = 16, **options: Any) -> nn.Module:
    return seeded(
        lambda: nn.Linear(6, features),
        lambda: nn.BatchNorm1d(features, **options),
        nn.ReLU,
        lambda: nn.Linear(features, 3),
    )


def pointwise(features: int = 16) -> nn.Module:
    return seeded(
        lambda: nn.Unflatten(1, (6, 1, 1)),
        lambda: nn.Conv2d(6, features, 1),
        lambda: nn.BatchNorm2d(features),
        nn.ReLU,
        nn.Flatten,
        lambda: nn.Linear(features, 3),
    )


def simulate(model: nn.Module, policy: str, **changed: Any) -> atoll.Run:
    options: dict[str, Any] = {"rounds": 3, "batch": 8, "shuffle": False, "evaluate": {"clients": 0}, "clients": ROWS}
    algorithm = {"name": "fedavg", "lr": 0.05}
    options = {**options, "algorithm": algorithm, "task": {"batch_norm": policy}, **changed}
    data = options.pop("data", (X, Y))
    return atoll.simulate(model, data, **options)


# group


@pytest.mark.parametrize("model", [dense(4), dense(16), dense(32), pointwise(16)], ids=["4", "16", "32", "1x1"])
def test_a_model_learns_through_group_norm_behind_a_linear_layer(model: nn.Module) -> None:
    """With one value in a group it could but say the largest class: 0.39."""
    x = rng.normal(rng.key("x"), (1200, 6))
    y = (x @ rng.normal(rng.key("w"), (6, 3)) + torch.tensor([0.5, 0.0, 0.0])).argmax(1)
    rows = [list(range(i, 1000, 5)) for i in range(5)]
    run = simulate(
        model,
        "group",
        data=(x[:1000], y[:1000]),
        test=(x[1000:], y[1000:]),
        clients=rows,
        rounds=8,
        algorithm={"name": "fedavg", "lr": 0.1},
        engine="vector",
    )
    assert run.history[-1]["accuracy"] > 0.75


PRIVATE = {"privacy": {"max_norm": 1.0, "noise_multiplier": 0.5, "sampling": "shuffled"}}


@pytest.mark.parametrize("local", [{}, PRIVATE], ids=["plain", "private"])
def test_a_last_batch_of_one_is_the_same_on_every_engine_under_group_norm(local: Any, tmp_path: Path) -> None:
    runs = [
        simulate(dense(), "group", engine=engine, out=tmp_path / str(i), local=local, shuffle=True)
        for i, engine in enumerate(ENGINES)
    ]
    assert [run.info["engine"]["name"] for run in runs] == ["loop", "threads", "vector"]
    assert all(distance(run.params, runs[0].params) < 1e-5 for run in runs[1:])


def test_a_run_of_a_layer_that_group_norm_would_kill_is_refused_before_it_begins() -> None:
    with pytest.raises(ConfigError, match=r"^task.batch_norm: 'group' would normalise '1', BatchNorm1d\(2\)"):
        simulate(dense(2), "group")


# recompute


def images() -> nn.Module:
    return seeded(
        lambda: nn.Unflatten(1, (1, 2, 3)),
        lambda: nn.BatchNorm2d(1),
        nn.Flatten,
        lambda: nn.Linear(6, 3),
    )


@pytest.mark.parametrize(("model", "layer"), [(dense(), 1), (images(), 1)], ids=["behind a layer", "images"])
@pytest.mark.parametrize("engine", ENGINES, ids=["loop", "threads", "vector"])
def test_recomputed_statistics_are_those_of_all_the_cohort_s_examples_as_one_batch(
    model: nn.Module, layer: int, engine: Any, tmp_path: Path
) -> None:
    run = simulate(model, "recompute", engine=engine, out=tmp_path / "run")
    pooled = copy.deepcopy(model)
    pooled.load_state_dict(run.params)
    pooled[layer].momentum = 1.0
    pooled.train()(X)
    for name in ("running_mean", "running_var"):
        ours, theirs = run.params[f"{layer}.{name}"], pooled[layer].get_buffer(name)
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5), name


# average


def plain_fedavg(model: nn.Module, rounds: int) -> dict[str, Tensor]:
    """The weighted mean of state dicts, counters rounded to whole numbers."""
    server = copy.deepcopy(model)
    for _ in range(rounds):
        states = []
        for rows in ROWS:
            client = copy.deepcopy(server).train()
            optimizer = torch.optim.SGD(client.parameters(), 0.05)
            for batch in torch.tensor(rows).split(8):
                optimizer.zero_grad()
                loss = F.cross_entropy(client(X[batch]), Y[batch])
                loss.backward()
                optimizer.step()
            states.append(client.state_dict())
        means = {k: sum(n * s[k].double() for n, s in zip(SIZES, states, strict=True)) / sum(SIZES) for k in states[0]}
        server.load_state_dict(
            {k: v if server.state_dict()[k].is_floating_point() else v.round() for k, v in means.items()}
        )
    return server.state_dict()


@pytest.mark.parametrize("engine", ENGINES, ids=["loop", "threads", "vector"])
def test_without_a_momentum_running_statistics_are_the_mean_over_all_batches(engine: Any, tmp_path: Path) -> None:
    layers = (
        lambda: nn.Unflatten(1, (2, 3)),
        lambda: nn.BatchNorm1d(2, momentum=None),
        nn.Flatten,
        lambda: nn.Linear(6, 3),
    )
    run = simulate(seeded(*layers), "average", engine=engine, out=tmp_path / "run")
    assert run.info["engine"]["name"] == (engine if isinstance(engine, str) else engine["name"])
    truth = plain_fedavg(seeded(*layers), 3)
    assert distance(run.params, truth) < 1e-5
    assert int(run.params["1.num_batches_tracked"]) == int(truth["1.num_batches_tracked"]) > 0
