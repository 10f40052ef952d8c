"""Everything that can be wrong with what a user gives: said clearly, before anything is written."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import atoll
from atoll.errors import AtollError, ConfigError, DataError, DivergenceError, PartitionError
from atoll.experiment import Experiment, find_device, set_up

N = 20
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(N) % 3
HALVES = [list(range(10)), list(range(10, N))]


def spoiled(value: float) -> Tensor:
    x = X.clone()
    x[3, 1] = value
    return x


class Pair(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


class Still(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :3]


NAN, INF = float("nan"), float("inf")
CASES: dict[str, tuple[dict[str, Any], type[AtollError], str]] = {
    # clients
    "no clients": ({"clients": []}, PartitionError, "no clients. Give at least one list of rows"),
    "an empty client": ({"clients": [HALVES[0], []]}, PartitionError, "client 1 would have no examples"),
    "a row twice": ({"clients": [[0, 0], [1]]}, PartitionError, "client 0 holds row 0 twice"),
    "a row at two clients": ({"clients": [[0, 1], [1, 2]]}, PartitionError, "row 1 is held by clients 0 and 1. Give"),
    "a row too far": ({"clients": [[0, 1], [2, 20]]}, PartitionError, "row 20 does not exist. Rows are 0..19"),
    "a row below zero": ({"clients": [[0, -1]]}, PartitionError, "row -1 does not exist"),
    "masks": ({"clients": [Y == 0, Y != 0]}, PartitionError, "np.flatnonzero(mask) turns a mask into rows"),
    "rows that are floats": (
        {"clients": [[0.5, 1.0]]},
        PartitionError,
        "client 0 must be an array of row numbers",
    ),
    "rows that are not lists": ({"clients": [1, 2]}, PartitionError, "clients: has 2 ids for 20 examples. Give one"),
    "clients that are none": ({"clients": 5}, ConfigError, "clients: must be a list of index arrays"),
    "an unknown partition": ({"clients": {"name": "irichlet"}}, ConfigError, "Did you mean 'dirichlet'?"),
    # data
    "no examples": ({"data": (X[:0], Y[:0])}, DataError, "has no examples"),
    "NaN": ({"data": (spoiled(NAN), Y)}, DataError, "train.x: 1 values are not finite, the first in row 3"),
    "infinity": ({"data": (spoiled(INF), Y)}, DataError, "train.x: 1 values are not finite, the first in row 3"),
    "NaN in the test": ({"test": (spoiled(NAN), Y)}, DataError, "test.x: 1 values are not finite"),
    "NaN as a target": ({"data": (X, spoiled(NAN)[:, 1])}, DataError, "train.y: 1 values are not finite"),
    "labels below zero": ({"data": (X, Y - 1)}, DataError, "train.y: -1 in row 0 is outside 0.."),
    "labels too high": ({"data": (X, Y + 5)}, ConfigError, "the model's outputs are (4, 3); 8 classes need (batch, 8)"),
    "labels that are text": ({"data": (X, ["a", "b"] * 10)}, DataError, "y: has dtype <U1. Give numbers: encode text"),
    "labels that are floats": ({"data": (X, Y.float())}, ConfigError, "if they are classes, give them as integers"),
    "labels in a column": ({"data": (X, Y[:, None])}, DataError, "Use one label for each example (y.reshape(-1))"),
    "more x than y": ({"data": (X, Y[:5])}, DataError, "train: x has 20 rows and y has 5"),
    "more test x than y": ({"test": (X, Y[:5])}, DataError, "test: x has 20 rows and y has 5"),
    "another shape in the test": ({"test": (X[:, :3], Y)}, DataError, "test.x: rows have shape (3,), in train (4,)"),
    "no pair": ({"data": X}, ConfigError, "data: must be a pair of arrays (x, y)"),
    "three arrays": ({"data": (X, Y, Y)}, ConfigError, "data: must be a pair of arrays (x, y)"),
    "new labels in the test": ({"test": (X, Y + 1)}, ConfigError, "4 classes need (batch, 4), and labels count from 0"),
    "complex numbers": ({"data": (X.to(torch.complex64), Y)}, DataError, "x: is torch.complex64"),
    "sparse targets": ({"data": (X, Y.to_sparse())}, DataError, "Give real numbers in a dense array"),
    "rows of several lengths": ({"data": ([[1, 2], [3]], [0, 1])}, DataError, "x: is no array"),
    # the model and its loss
    "another width": ({"model": nn.Linear(5, 3)}, ConfigError, "task.model: cannot take inputs of shape (4,)"),
    "two outputs for three": ({"model": nn.Linear(4, 2)}, ConfigError, "3 classes need (batch, 3)"),
    "a lazy layer": ({"model": lambda: nn.LazyLinear(3)}, ConfigError, "model: the size of 'weight' is not known yet"),
    "a lazy module": ({"model": nn.LazyLinear(3)}, ConfigError, "Give the layer its number of inputs"),
    "a tuple": ({"model": Pair(4, 3)}, ConfigError, "task.model: gives a tuple, but must give one tensor"),
    "no parameters": ({"model": Still()}, ConfigError, "has no parameters, so there is nothing to learn"),
    "a name": ({"model": "mlp"}, ConfigError, "model: must be a torch module, or a function that makes one (got str)"),
    "a function of text": (
        {"model": lambda: "x"},
        ConfigError,
        "the function gave a str, but must give a torch module",
    ),
    "a loss by output": (
        {"data": (X, X[:, :3]), "loss": nn.MSELoss(reduction="none")},
        ConfigError,
        "loss: gives (20, 3) for a batch of 20, but must give one number",
    ),
    "a loss of floats": ({"loss": lambda out, y: 1.0}, ConfigError, "loss: gives a float, but must give a tensor"),
    "a loss that fails": ({"loss": nn.BCEWithLogitsLoss()}, ConfigError, "loss: failed on outputs of shape (23, 3)"),
    "a loss of nothing": ({"loss": lambda out, y: torch.zeros(())}, ConfigError, "does not depend on the model's"),
    "a loss by name": (
        {"loss": "mse"},
        ConfigError,
        "'mse' is not for classification by a model with 3 outputs. Use one of",
    ),
    "a loss of no kind": ({"loss": 3}, ConfigError, "loss: must be a function of outputs and targets (got int)"),
    # numbers
    "no rounds": ({"rounds": 0}, ConfigError, "rounds: must be at least 1 (got 0)"),
    "half a round": ({"rounds": 1.5}, ConfigError, "rounds: must be a whole number (got 1.5)"),
    "more than there are": ({"cohort": 3}, ConfigError, "3 clients cannot be drawn from 2. Use at most 2"),
    "nobody": ({"cohort": 0}, ConfigError, "cohort.size: must be at least 1 (got 0). For all clients use"),
    "no epochs": ({"epochs": 0}, ConfigError, "local.epochs: must be at least 1 (got 0)"),
    "a batch below zero": ({"batch": -1}, ConfigError, "local.batch: must be at least 0 (got -1)"),
    "a rate of zero": (
        {"algorithm": {"name": "fedavg", "lr": 0}},
        ConfigError,
        "algorithm.lr: must be above 0 (got 0)",
    ),
    "no rate": ({"algorithm": "fedavg"}, ConfigError, "algorithm.lr: is missing; fedavg needs it"),
    "a seed below zero": ({"seed": -1}, ConfigError, "seed: must be at least 0 (got -1)"),
    "all held out": ({"evaluate": {"holdout": 1.0}}, ConfigError, "evaluate.holdout: must be below 1"),
    # parts
    "an unknown algorithm": ({"algorithm": "fedavgg"}, ConfigError, "Did you mean 'fedavg'?"),
    "an unknown engine": ({"engine": "gpu"}, ConfigError, "engine.name: 'gpu' is not known"),
    "one transform": ({"transforms": "top_k"}, ConfigError, "transform: must be a list (got"),
    "no table": ({"local": 3}, ConfigError, "local: must be a table (got 3)"),
    "noise without a bound": (
        {"transforms": [{"name": "gaussian_noise", "noise_multiplier": 1.0}]},
        atoll.errors.SpecError,
        "gaussian_noise needs bounded updates: put clip_l2 before it",
    ),
    "a device nobody knows": ({"device": "tpu"}, ConfigError, "device: must be 'auto', 'cpu', 'cuda' or one GPU such"),
    "a GPU without a number": ({"device": "cuda:x"}, ConfigError, "or one GPU such as 'cuda:1' (got 'cuda:x'"),
    "a device that was never tried": ({"device": "mps"}, ConfigError, "device: 'mps' has not been shown"),
    "a place below a file": ({"out": Path(__file__) / "run"}, atoll.errors.RecordError, "test_bad_input.py: is a file"),
    "a file": ({"out": Path(__file__)}, atoll.errors.RecordError, "test_bad_input.py: is a file. Name a folder"),
}


def simulate(out: Path | None = None, model: Any = None, **options: Any) -> atoll.Run:
    given: dict[str, Any] = {
        "data": (X, Y),
        "clients": HALVES,
        "algorithm": {"name": "fedavg", "lr": 0.1},
        "rounds": 2,
        "engine": "loop",
        "out": out,
        **options,
    }
    return atoll.simulate((lambda: nn.Linear(4, 3)) if model is None else model, **given)


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_in_words_and_leaves_nothing_behind(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, kind, words = CASES[name]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(kind) as e:
        simulate(**{"out": tmp_path / "run", **options})
    assert words in str(e.value)
    assert list(tmp_path.iterdir()) == []


def test_all_is_well_with_the_rest() -> None:
    """The base that the cases spoil."""
    assert simulate().status == "finished"


def test_a_missing_gpu_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="device: 'cuda' was asked for, but torch sees no GPU here"):
        simulate(tmp_path / "run", device="cuda")
    assert not (tmp_path / "run").exists()


def test_one_gpu_of_several_is_taken_and_one_too_many_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    assert find_device("cuda:1") == torch.device("cuda")
    assert taken == [1]
    with pytest.raises(ConfigError, match=r"device: there is no 'cuda:2', torch sees 2 GPU\(s\): 0 to 1"):
        find_device("cuda:2")
    monkeypatch.setattr("atoll.experiment.device.launched", lambda: True)
    with pytest.raises(ConfigError, match=r"under torchrun every process has a GPU of its own"):
        find_device("cuda:1")


def test_what_can_be_run_is_run_with_a_note() -> None:
    notes = simulate(batch=12, clients=HALVES).info["notes"]
    assert notes == [
        "2 of 2 clients have fewer examples than local.batch = 12 (the smallest 10): "
        "each of their epochs is one smaller batch."
    ]
    assert simulate(batch=10).info["notes"] == []
    notes = simulate(batch=1, model=nn.Linear(4, 4), test=(X, Y + 1)).info["notes"]
    assert notes == ["The test data has labels that no training example has: 3."]
    notes = simulate(batch=1, model=nn.Linear(4, 1), data=(X, Y.float())).info["notes"]
    assert notes == ["The targets are floats, so this is regression. If they are classes, give them as integers."]


def test_a_loss_that_stops_being_a_number_stops_the_run_and_names_everything(tmp_path: Path) -> None:
    x = X.clone()
    x[HALVES[1]] *= 1e30  # finite, but not what comes of it
    options: dict[str, Any] = {"data": (x, Y), "checkpoint": {"every": 1}, "engine": "vector", "rounds": 3}
    with pytest.raises(DivergenceError) as e:
        simulate(tmp_path / "a", **options)
    assert str(e.value).startswith("round 2: the loss or the update of client 1 is not finite. Lower algorithm.lr")
    assert "on_divergence = 'drop'" in str(e.value)
    assert f"Last checkpoint: round 1 in {tmp_path / 'a' / 'checkpoint.pt'}." in str(e.value)
    assert atoll.Run(tmp_path / "a").status == "failed: DivergenceError"
    assert len(atoll.Run(tmp_path / "a").history) == 1
    with pytest.raises(DivergenceError, match="Last checkpoint: none was written yet"):
        simulate(tmp_path / "b", **{**options, "checkpoint": {"every": 0}})


@pytest.mark.parametrize("engine", ["loop", "vector", "threads"])
def test_or_such_clients_are_left_out(engine: str) -> None:
    x = X.clone()
    x[HALVES[1]] = X[HALVES[1]].sign() * 3.3e38
    done = simulate(data=(x, Y), on_divergence="drop", engine=engine, test=(X, Y), evaluate={"after": True})
    assert [e["dropped"] for e in done.history] == [[1], [1]]
    alone = simulate(clients=HALVES[:1], rounds=2, engine=engine)
    assert all(torch.allclose(v, alone.params[k], atol=1e-6) for k, v in done.params.items())
    assert [e["train_loss"] for e in done.history] == pytest.approx([e["train_loss"] for e in alone.history])
    after = json.loads((done.folder / "clients.json").read_text())["after"]["accuracy"]
    assert after[1] is None  # a client whose training diverges has no accuracy after it
    assert done.final["after"]["accuracy"]["mean"] == after[0]


def test_nobody_is_left() -> None:
    done = simulate(algorithm={"name": "fedavg", "lr": 1e38}, on_divergence="drop", test=(X, Y), rounds=3)
    assert done.history[-1]["dropped"] == [0, 1]
    assert done.history[-1]["model"] == done.history[-2]["model"]
    assert "train_loss" not in done.history[-1]


def test_a_file_with_several_mistakes_lists_them_all() -> None:
    with pytest.raises(ConfigError) as e:
        atoll.Experiment.parse({"rounds": 0, "data": "digitz", "algorithm": {"name": "fedavg", "lr": -1}, "evry": 1})
    assert len(e.value.problems) == 4


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_a_mean_of_memories_is_refused_where_a_client_may_come_twice(name: str) -> None:
    twice = {"name": "fixed_with_replacement", "size": 3}
    with pytest.raises(ConfigError, match=r"drawn twice .* Use cohort.name = 'fixed'"):
        set_up(
            Experiment.parse(
                {
                    "rounds": 1,
                    "data": "digits",
                    "partition": {"name": "iid", "clients": 4},
                    "cohort": twice,
                    "algorithm": {"name": name, "lr": 0.1},
                }
            )
        )
