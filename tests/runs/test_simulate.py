"""`atoll.simulate`: arrays and a module in, a Run out, and nothing else in the program is touched."""

import copy
import gc
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import atoll
from atoll import tree
from atoll.data import Partition

SIZES = [7, 16, 1, 12, 5]
CLIENTS = [
    torch.arange(sum(SIZES[:i]), sum(SIZES[: i + 1])).flip(0) for i in range(len(SIZES))
]  # an order of their own
LR = 0.3


def blobs(n: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=g)
    return torch.randn(n, 4, generator=g) + y[:, None].float(), y


X, Y = blobs(sum(SIZES), 0)
TEST = blobs(30, 1)


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 3))


def simulate(model: Any = None, **options: Any) -> atoll.Run:
    given: dict[str, Any] = {
        "data": (X, Y),
        "test": TEST,
        "clients": CLIENTS,
        "algorithm": {"name": "fedavg", "lr": LR},
        "rounds": 3,
        "batch": 5,
        "engine": "loop",
        **options,
    }
    return atoll.simulate(model or net(), **given)


def fedavg(
    model: nn.Module, rounds: int, batch: int, epochs: int, loss: Callable[..., Tensor] = F.cross_entropy
) -> Any:
    """FedAvg by hand: a loop over clients, plain SGD, the mean of the models weighted by examples."""
    for _ in range(rounds):
        total = {k: torch.zeros_like(v, dtype=torch.float64) for k, v in model.state_dict().items()}
        for rows in CLIENTS:
            mine = copy.deepcopy(model).train()
            opt = torch.optim.SGD(mine.parameters(), LR)
            for start in [s for _ in range(epochs) for s in range(0, len(rows), batch)]:
                now = rows[start : start + batch]
                opt.zero_grad()
                loss(mine(X[now]), Y[now]).backward()
                opt.step()
            for k, v in mine.state_dict().items():
                total[k] += v.double() * len(rows) / len(X)
        model.load_state_dict({k: v.to(model.state_dict()[k].dtype) for k, v in total.items()})
    return model


@pytest.mark.parametrize("engine", ["loop", "vector", "threads"])
@pytest.mark.parametrize(("batch", "epochs"), [(5, 1), (4, 2), (100, 1)])
def test_it_is_fedavg_as_one_would_write_it_by_hand(engine: str, batch: int, epochs: int) -> None:
    done = simulate(engine=engine, batch=batch, epochs=epochs, shuffle=False)
    by_hand = fedavg(net(), 3, batch, epochs).state_dict()
    assert done.params.keys() == by_hand.keys()
    for k, v in by_hand.items():
        assert torch.allclose(done.params[k], v, atol=2e-6), k


def test_a_loss_of_one_s_own_is_trained_with_and_measured() -> None:
    soft = nn.CrossEntropyLoss(label_smoothing=0.2)
    done = simulate(loss=soft, shuffle=False)
    by_hand = fedavg(net(), 3, 5, 1, soft)
    assert all(torch.allclose(done.params[k], v, atol=2e-6) for k, v in by_hand.state_dict().items())
    with torch.no_grad():
        assert done.final["loss"] == pytest.approx(float(soft(by_hand(TEST[0]), TEST[1])), rel=1e-4)
    assert done.info["experiment"]["task"]["model"]["loss"] == "CrossEntropyLoss"


def test_a_run_has_what_a_notebook_needs(tmp_path: Path) -> None:
    done = simulate(out=tmp_path / "run")
    assert isinstance(done, atoll.Run)
    assert done.folder == tmp_path / "run"
    assert [e["round"] for e in done.history] == [1, 2, 3]
    assert done.final["accuracy"] == done.history[-1]["accuracy"]
    assert done.final["round"] == 3
    assert done.status == "finished"
    assert repr(done).startswith(f"Run('{tmp_path / 'run'}', finished, 3 rounds, train_loss ")
    page = done.report()
    assert page == tmp_path / "run" / "report.html"
    assert "<html" in page.read_text()
    assert atoll.Run(tmp_path / "run").history == done.history


class Everything(nn.Module):
    """BatchNorm, a buffer that is constant, a buffer that is not saved, nested modules."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleList([nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2)])
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_buffer("scratch", torch.ones(1), persistent=False)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.body:
            x = layer(x)
        return self.head(x * self.scale * self.scratch)


@pytest.mark.parametrize("policy", ["average", "local", "recompute", "freeze"])
def test_the_parameters_load_strictly_into_the_module(policy: str) -> None:
    done = simulate(Everything(), task={"batch_norm": policy})
    other = Everything()
    other.load_state_dict(done.params, strict=True)
    assert float(other.scale) == 2.0
    if policy == "average":
        other.eval()
        with torch.no_grad():
            assert float((other(TEST[0]).argmax(1) == TEST[1]).float().mean()) == pytest.approx(done.final["accuracy"])
    moved = not torch.equal(done.params["body.1.running_mean"], torch.zeros(6))
    assert moved == (policy in ("average", "recompute"))  # kept with the clients, or not touched at all


def test_group_norm_instead_of_batch_norm_is_said_in_the_names() -> None:
    done = simulate(Everything(), task={"batch_norm": "group"})
    assert "body.1.weight" in done.params
    assert "body.1.running_mean" not in done.params


def test_the_user_s_module_is_not_changed() -> None:
    model = Everything().eval()
    model.body[0].weight.requires_grad_(True)
    before, mode = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    hooks = [len(m._forward_hooks) for m in model.modules()]
    simulate(model, rounds=2)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert [m.training for m in model.modules()] == mode
    assert [len(m._forward_hooks) for m in model.modules()] == hooks
    assert all(p.grad is None for p in model.parameters())
    assert isinstance(model.body[1], nn.BatchNorm1d)


class Drawing(nn.Module):
    """Draws random numbers of its own, which runs on the loop engine with seeds."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(x, 0.3, self.training))


@pytest.mark.parametrize("model", [net, Drawing, Drawing()], ids=["made", "drawing, made", "drawing"])
@pytest.mark.parametrize("engine", ["auto", "loop"])
def test_the_program_s_own_random_numbers_are_not_disturbed(model: Any, engine: str) -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    simulate(model, engine=engine, cohort=2, transforms=[{"name": "top_k", "share": 0.5}])
    after = torch.get_rng_state(), np.random.get_state()[1], random.getstate()
    if model is not net:  # which seeds torch itself
        assert torch.equal(before[0], after[0])
    assert (before[1] == after[1]).all()
    assert before[2] == after[2]


def test_a_failure_does_not_disturb_them_either() -> None:
    model, before = Drawing(), torch.get_rng_state()
    with pytest.raises(atoll.errors.DivergenceError):
        simulate(model, algorithm={"name": "fedavg", "lr": 1e38})
    assert torch.equal(before, torch.get_rng_state())


def fingerprint(model: Any = Drawing, **options: Any) -> str:
    done = simulate(model, cohort=3, **options)
    return json.dumps([tree.digest(done.params), [{**e, "seconds": None} for e in done.history]])


def test_the_same_twice_and_another_with_another_seed() -> None:
    torch.manual_seed(0)
    first = fingerprint()
    torch.manual_seed(99)  # weights are drawn from `seed`, not from the program's generator
    torch.rand(3)
    assert fingerprint() == first
    assert fingerprint(seed=1) != first


def long_fingerprints() -> list[str]:
    return [fingerprint(Everything, engine=e, rounds=30) for e in ("vector", "threads")]  # long enough to be captured


@pytest.mark.slow
def test_the_same_in_another_process() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import torch; torch.set_num_threads(1)\n"
        "import test_simulate\n"
        "print(*test_simulate.long_fingerprints(), sep='\\n')"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.splitlines() == long_fingerprints()


def test_a_function_that_makes_the_model_draws_it_from_the_seed() -> None:
    def make() -> nn.Module:
        return nn.Linear(4, 3)

    slow = {"name": "fedavg", "lr": 1e-12}
    a, b, c = (simulate(make, seed=s, algorithm=slow, rounds=1).params for s in (0, 0, 1))
    assert tree.digest(a) == tree.digest(b) != tree.digest(c)
    model = make()
    assert torch.allclose(simulate(model, algorithm=slow).params["weight"], model.weight)  # a module starts as it is


def test_the_record_names_the_very_arrays_clients_and_weights() -> None:
    torch.manual_seed(0)
    runs = {
        "same": simulate(),
        "data": simulate(data=(X + 1, Y)),
        "clients": simulate(clients=CLIENTS[::-1]),
        "model": simulate(nn.Linear(4, 3)),
        "weights": simulate(nn.Linear(4, 3)),
    }
    base = simulate()
    assert runs["same"].info["digest"] == base.info["digest"]
    assert len({r.info["digest"] for r in runs.values()}) == 5
    entry = base.info["experiment"]["partition"]
    assert entry["digest"] == Partition.from_lists(CLIENTS, len(X)).digest() == base.info["partition"]["digest"]
    assert base.info["partition"]["sizes"] == {"min": 1, "median": 7.0, "max": 16}


def test_clients_may_be_lists_arrays_tensors_or_a_partition() -> None:
    kinds = (
        [c.tolist() for c in CLIENTS],
        [c.numpy().astype(np.int32) for c in CLIENTS],
        Partition.from_lists(CLIENTS, 41),
    )
    wanted = simulate().history[-1]["model"]
    for clients in kinds:
        assert simulate(clients=clients).history[-1]["model"] == wanted
    shared = Partition.from_lists([[0, 1, 2], [2, 3]], overlap=True)
    assert simulate(clients=shared).info["partition"]["examples"] == 5


def test_clients_may_be_a_partition_entry() -> None:
    done = simulate(clients={"name": "dirichlet", "clients": 4, "alpha": 1.0, "minimum": 1}, cohort=2)
    assert done.info["partition"]["clients"] == 4
    assert all(e["cohort"]["size"] == 2 for e in done.history)
    assert simulate(clients={"name": "iid", "clients": 4}, cohort={"name": "poisson", "probability": 0.5})


def test_a_round_to_which_nobody_comes_is_a_round() -> None:
    for engine in ("auto", "vector", "loop", "threads"):
        done = simulate(cohort={"name": "poisson", "probability": 0.05}, rounds=4, engine=engine, seed=3)
        empty = [e for e in done.history if e["cohort"]["size"] == 0]
        assert empty, engine
        assert done.history[0] in empty  # the one an engine is tried on
        assert "train_loss" not in empty[0]
        assert empty[0]["bytes"] == {"up": 0, "down": 0}


def test_further_tables_go_by_name_and_wrong_names_are_refused() -> None:
    done = simulate(evaluate={"every": 3}, local={"max_steps": 1}, label="mine", transforms=["equal_weights"])
    assert done.info["label"] == "mine"
    assert done.info["experiment"]["local"] == {"epochs": 1, "batch": 5, "shuffle": True, "max_steps": 1}
    with pytest.raises(atoll.errors.ConfigError, match=r"evalute: .*Did you mean evaluate\?"):
        simulate(evalute={"every": 2})


def test_what_is_frozen_stays_and_what_is_tied_stays_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.still, self.a, self.b = nn.Linear(4, 3).requires_grad_(False), nn.Linear(3, 3), nn.Linear(3, 3)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.tanh(self.a(torch.tanh(self.still(x)))))

    model = Tied()
    for engine in ("loop", "vector"):
        done = simulate(model, engine=engine, shuffle=False)
        assert torch.equal(done.params["still.weight"], model.still.weight)
        assert torch.equal(done.params["a.weight"], done.params["b.weight"])
        assert not torch.equal(done.params["a.weight"], model.a.weight)
        by_hand = fedavg(copy.deepcopy(model), 3, 5, 1).state_dict()
        assert all(torch.allclose(done.params[k], v, atol=2e-6) for k, v in by_hand.items())


def test_tokens_and_numbers_are_learned_too() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(7, 5), nn.Linear(5, 7)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.embed(x))

    text = torch.randint(0, 7, (12, 6), generator=torch.Generator().manual_seed(0))
    pair = text[:, :-1], text[:, 1:]
    done = simulate(Words, data=pair, test=pair, clients={"name": "iid", "clients": 3})
    assert done.final["perplexity"] == pytest.approx(np.exp(done.final["loss"]), rel=1e-6)
    done = simulate(nn.Linear(4, 1), data=(X, X.sum(1)), test=None, algorithm={"name": "fedavg", "lr": 0.01})
    assert done.final["train_loss"] < done.history[0]["train_loss"]


def test_the_folder_goes_with_its_run_and_failures_leave_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    done = simulate()
    assert list(tmp_path.iterdir()) == [done.folder]
    del done
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(atoll.errors.DivergenceError):
        simulate(algorithm={"name": "fedavg", "lr": 1e30})
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_simulation_goes_on_from_where_it_was(tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    def watch(done: int, rounds: int, entry: object) -> None:
        if done == 3:
            raise StopError

    options: dict[str, Any] = {"rounds": 5, "checkpoint": {"every": 2}, "algorithm": {"name": "scaffold", "lr": LR}}
    with pytest.raises(StopError):
        simulate(out=tmp_path / "a", watch=watch, **options)
    with pytest.raises(atoll.errors.RecordError, match="holds a run already"):
        simulate(out=tmp_path / "a", **options)
    with pytest.raises(atoll.errors.RecordError, match="holds another experiment"):
        simulate(out=tmp_path / "a", resume=True, **{**options, "data": (X * 2, Y)})
    resumed, whole = simulate(out=tmp_path / "a", resume=True, **options), simulate(**options)
    assert tree.digest(resumed.params) == tree.digest(whole.params)


@pytest.mark.slow
def test_many_simulations_leave_no_threads_files_or_memory_behind() -> None:
    def once() -> None:
        for engine in ("vector", "threads"):
            simulate(engine=engine, rounds=1)

    once()
    gc.collect()
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(4):
        once()
    gc.collect()
    for thread in threading.enumerate():  # workers end soon after their pool is gone
        if thread.name.startswith("atoll"):
            thread.join(5)
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) <= before  # noqa: PTH208
