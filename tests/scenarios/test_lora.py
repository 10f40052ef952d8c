"""Runs whose clients learn adapters beside a frozen base: as in plain PyTorch, on every engine, with everything."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import atoll
from atoll import tree
from atoll.core import Evaluate
from atoll.engines.vector.signature import Signatures
from atoll.errors import ConfigError, RecordError
from atoll.experiment import Experiment, set_up
from atoll.experiment.adapters import with_adapters
from atoll.records import RunFolder
from atoll.runs import Run, run_together
from atoll.runs.checkpoint import read_checkpoint
from atoll.runs.engine_setup import evaluation_data
from tests.support.marks import slow_among
from tests.support.paths import ROOT

LORA = {"rank": 2, "alpha": 6.0, "targets": ["0", "2"]}
X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()
CLIENTS = [list(range(0, 10)), list(range(10, 25)), list(range(25, 40))]


class StopError(Exception):
    """What a test stops a run with."""


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))


def simulate(model: Any = net, lora: Any = LORA, **more: Any) -> Run:
    task = {"task": {} if lora is None else {"lora": lora}}
    usual = {"clients": CLIENTS, "algorithm": {"name": "fedavg", "lr": 0.3}, "rounds": 2, "batch": 5, "seed": 3}
    return atoll.simulate(model, (X, Y), (X, Y), **{**usual, "shuffle": False, **task, **more}, progress=False)


def text(**changes: Any) -> dict[str, Any]:
    model = {"name": "llama", "width": 16, "layers": 1, "feedforward": 16}
    return {
        "rounds": 2,
        "data": {"name": "library_text", "window": 8},
        "partition": {"name": "iid", "clients": 4},
        "task": {"model": model, "lora": {"rank": 2, "alpha": 2.0, "targets": ["q_proj", "v_proj"]}},
        "local": {"batch": 4, "max_steps": 2},
        "evaluate": {"rows": 50, "clients": 2},
        "algorithm": {"name": "fedavg", "lr": 0.5},
        "engine": "vector",
        **changes,
    }


# the same as plain PyTorch


@pytest.mark.parametrize("engine", slow_among(["loop", "vector", "threads"], "threads"))
def test_two_rounds_are_those_of_a_plain_loop_with_weights_w_plus_b_a(engine: str) -> None:
    torch.manual_seed(5)
    model = net()
    run = simulate(model, engine=engine)
    expected = two_rounds_by_hand(model, run)
    for k, v in expected.items():
        torch.testing.assert_close(run.params[k], v, rtol=0, atol=1e-6)
        assert not torch.equal(v, model.state_dict()[k]) or k.endswith("bias")


def two_rounds_by_hand(model: nn.Module, run: Run) -> dict[str, Tensor]:
    """FedAvg over tensors, the layers written out: x -> tanh(x W0^T + b0) W2^T + b2, each W its base + 3 B A."""
    drawn = with_adapters(Experiment(**run.info["experiment"]), model).state_dict()
    base = {k: v.detach() for k, v in model.state_dict().items()}
    server = {f"{i}.{n}": drawn[f"{i}.lora_{n}"].clone() for i in (0, 2) for n in "AB"}

    def whole(p: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**base, **{f"{i}.weight": base[f"{i}.weight"] + 6.0 / 2 * p[f"{i}.B"] @ p[f"{i}.A"] for i in (0, 2)}}

    for _ in range(2):
        total = {k: torch.zeros_like(v) for k, v in server.items()}
        for rows in CLIENTS:
            mine = {k: v.clone().requires_grad_() for k, v in server.items()}
            for at in range(0, len(rows), 5):
                x, y, w = X[rows[at : at + 5]], Y[rows[at : at + 5]], whole(mine)
                out = torch.tanh(x @ w["0.weight"].T + w["0.bias"]) @ w["2.weight"].T + w["2.bias"]
                grads = torch.autograd.grad(nn.functional.cross_entropy(out, y), list(mine.values()))
                mine = {
                    k: (v - 0.3 * g).detach().requires_grad_() for (k, v), g in zip(mine.items(), grads, strict=True)
                }
            for k, v in mine.items():
                total[k] += len(rows) / len(X) * (v.detach() - server[k])
        server = {k: v + total[k] for k, v in server.items()}
    return whole(server)


@pytest.mark.parametrize("engine", slow_among(["loop", "threads"], "threads"))
def test_engines_agree_on_a_language_model(engine: str, tmp_path: Path) -> None:
    stacked, other = (atoll.run(text(engine=e), tmp_path / e, progress=False) for e in ("vector", engine))
    for k, v in stacked.params.items():
        torch.testing.assert_close(other.params[k], v, rtol=0, atol=1e-6)


def test_with_everything_else_trained_a_run_with_adapters_that_stay_zero_is_a_dense_one() -> None:
    """Adapters on one layer whose gradient is zero, since it reads zeros: the rest learns as it would without."""

    class Silent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.silent, self.out = nn.Linear(6, 3, bias=False), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.out(x) + self.silent(x * 0)
            return out

    torch.manual_seed(1)
    model = Silent()
    lora = {"rank": 1, "targets": ["silent"], "also_train": ["out.*"]}
    with_lora, dense = simulate(model, lora, engine="loop"), simulate(model, None, engine="loop")
    assert all(torch.equal(with_lora.params[k], v) for k, v in dense.params.items())


# what is sent, kept and saved


def test_what_travels_is_the_adapters_alone(tmp_path: Path) -> None:
    dense = text()
    dense["task"] = {"model": dense["task"]["model"]}
    low, whole = (atoll.run(e, tmp_path / str(i), progress=False) for i, e in enumerate((text(), dense)))
    numbers = low.info["model"]["parameters"]
    assert numbers == (16 + 16) * 2 + (16 + 8) * 2  # q: 16 x 16; v: 8 x 16, of half as many heads
    assert low.info["model"]["frozen"] == whole.info["model"]["parameters"]
    for way in ("up", "down"):
        each = low.history[0]["bytes"][way] / 4
        assert 4 * numbers <= each < 4 * numbers + 500  # names and shapes
        assert whole.history[0]["bytes"][way] / 4 > 4 * whole.info["model"]["parameters"]


def test_a_checkpoint_holds_adapters_and_no_base(tmp_path: Path) -> None:
    wide = nn.Sequential(nn.Linear(6, 3000), nn.Tanh(), nn.Linear(3000, 3))
    slow = {"name": "fedavg", "lr": 0.001}
    run = simulate(wide, {**LORA, "rank": 1}, out=tmp_path / "run", checkpoint={"every": 1}, algorithm=slow, rounds=1)
    folder = RunFolder(tmp_path / "run")
    base = 4 * sum(p.numel() for p in wide.parameters())
    saved = folder.checkpoint()
    assert "best" in saved
    assert folder.checkpoint_path.stat().st_size < base
    assert set(saved["parts"]["round"]["server"]["params"]) == {f"{i}.lora_{n}" for i in (0, 2) for n in "AB"}
    assert folder.best_path.stat().st_size > base  # which is whole, and merged
    assert set(run.best_params) == set(wide.state_dict())


def test_with_top_k_a_resumed_run_is_an_undisturbed_one(tmp_path: Path) -> None:
    def watch(done: int, rounds: int, entry: object) -> None:
        if done == 2:
            raise StopError

    task = {**text()["task"], "lora": {"rank": 8, "targets": ["*"]}}
    changes = {"rounds": 3, "task": task, "transform": [{"name": "top_k", "share": 0.2}], "checkpoint": {"every": 1}}
    whole = atoll.run(text(**changes), tmp_path / "whole", progress=False)
    with pytest.raises(StopError):
        atoll.run(text(**changes), tmp_path / "cut", watch=watch, progress=False)
    resumed = atoll.run(text(**changes), tmp_path / "cut", resume=True, progress=False)
    assert [x["model"] for x in resumed.history] == [x["model"] for x in whole.history]
    for kind in ("params", "best_params"):
        a, b = getattr(whole, kind), getattr(resumed, kind)
        assert all(torch.equal(v, b[k]) for k, v in a.items())
    dense = atoll.run(text(**{**changes, "transform": []}), tmp_path / "dense", progress=False)
    assert whole.history[0]["bytes"]["up"] < 0.7 * dense.history[0]["bytes"]["up"]


def test_a_base_that_changed_since_is_refused_on_resume(tmp_path: Path) -> None:
    start = tmp_path / "base.pt"
    torch.save(net().state_dict(), start)
    given = {"task": {"lora": LORA, "start": str(start)}, "out": tmp_path / "run"}

    def watch(done: int, rounds: int, entry: object) -> None:
        raise StopError

    model = net()
    with pytest.raises(StopError):
        simulate(model, checkpoint={"every": 1}, watch=watch, **given)
    torch.save(net().state_dict(), start)
    with pytest.raises(RecordError, match=r"the frozen weights are not those that this run began with"):
        simulate(model, resume=True, checkpoint={"every": 1}, **given)


def test_a_best_model_that_an_older_version_kept_whole_is_still_read(tmp_path: Path) -> None:
    """It was keyed like the module's state, base and all."""
    changes = {"rounds": 3, "checkpoint": {"every": 1}}

    def watch(done: int, rounds: int, entry: object) -> None:
        if done == 2:
            raise StopError

    with pytest.raises(StopError):
        atoll.run(text(**changes), tmp_path / "run", watch=watch, progress=False)
    folder = RunFolder(tmp_path / "run")
    saved, best = folder.checkpoint(), folder.best_model()
    folder.save_checkpoint({**saved, "best": {"model": best, "digest": tree.digest(best)}}, None)
    folder.best_path.unlink()
    setup = set_up(Experiment.parse(text(**changes)), "cpu")
    again = read_checkpoint(folder)
    assert again.best is None
    assert set(again.best_state or {}) == set(setup.task.plain_module().state_dict())
    assert atoll.run(text(**changes), tmp_path / "run", resume=True, progress=False).status == "finished"
    assert folder.best_path.exists()


# the model of a run


def test_the_model_of_a_run_is_plain_and_another_run_may_start_from_it(tmp_path: Path) -> None:
    run = atoll.run(text(), tmp_path / "run", progress=False)
    model = Run(tmp_path / "run").model()
    assert not any("lora" in k for k in model.state_dict())
    exported = run.export(tmp_path / "merged.safetensors")
    task = {**text()["task"], "start": str(exported)}
    later = atoll.run(text(task=task), tmp_path / "later", progress=False)
    probe = torch.arange(8)[None]
    assert torch.equal(model(probe), run.model()(probe))
    assert later.history[0]["train_loss"] < run.history[0]["train_loss"]


def test_a_client_keeps_adapters_of_its_own_and_predicts_with_them(tmp_path: Path) -> None:
    """FedPer, the last layer's adapter kept: what is merged for a client is the base, the shared and its own."""
    torch.manual_seed(2)
    model = net()
    run = simulate(model, algorithm={"name": "fedper", "lr": 0.3}, out=tmp_path / "run", rounds=3)
    whole = [run.model(client=i)(X) for i in range(3)]
    assert not torch.allclose(whole[0], whole[1])
    shares = [(out[rows].argmax(1) == Y[rows]).float().mean() for out, rows in zip(whole, CLIENTS, strict=True)]
    assert run.history[-1]["clients"]["accuracy"]["mean"] == pytest.approx(float(sum(shares) / 3))
    other = copy.deepcopy(model)
    nn.init.normal_(other[0].weight)
    with pytest.raises(ConfigError, match=r"adapters belong to other frozen weights"):
        run.model(client=0, module=other)


# memory


@pytest.mark.slow
def test_one_more_client_costs_its_activations_and_no_copy_of_the_base() -> None:
    """Peaks of whole processes, as the benchmark measures them."""
    shape = {"preset": "smollm2-135m", "layers": 4, "vocabulary": 256, "device": "cpu"}
    small = {"steps": 1, "batch": 1, "window": 2}
    peaks = {}
    for clients in (2, 18):
        given = json.dumps({**shape, **small, "clients": clients})
        command = [sys.executable, str(ROOT / "benchmarks" / "lora.py"), "--peak", given]
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
        peaks[clients], _, base = json.loads(done.stdout)
    assert base > 50
    assert (peaks[18] - peaks[2]) / 16 < 0.1 * base


# with everything else


@pytest.mark.slow
def test_runs_of_two_seeds_have_two_bases_and_end_as_they_would_alone(tmp_path: Path) -> None:
    cells = [Experiment.parse(text(seed=s)) for s in (0, 1)]
    together = run_together(cells, [tmp_path / f"t{s}" for s in (0, 1)])
    alone = [atoll.run(e, tmp_path / f"a{e.seed}", progress=False) for e in cells]
    assert alone[0].info["model"]["base"] != alone[1].info["model"]["base"]
    for a, b in zip(together, alone, strict=True):
        assert a.final["loss"] == pytest.approx(b.final["loss"], rel=1e-6)
        for k, v in a.params.items():
            torch.testing.assert_close(b.params[k], v, rtol=0, atol=1e-6)


DP_SGD = {"max_norm": 1.0, "noise_multiplier": 1.0, "delta": 1e-5}
NOISY = [
    "equal_weights",
    {"name": "clip_l2", "max_norm": 0.5},
    {"name": "gaussian_noise", "noise_multiplier": 0.5},
]


@pytest.mark.parametrize(
    ("changes", "written"),
    [
        pytest.param({"transform": NOISY, "privacy": {"delta": 1e-3}}, "privacy", id="clipped and noisy"),
        pytest.param(
            {"local": {"batch": 4, "max_steps": 2, "privacy": DP_SGD}},
            "privacy",
            id="private examples",
            marks=pytest.mark.slow,
        ),
        pytest.param({"clock": {"seconds_per_step": 0.1, "up_mbps": 1.0, "down_mbps": 10.0}}, "clock", id="clock"),
        pytest.param(
            {"algorithm": {"name": "scaffold", "lr": 0.5}, "server": {"ema": 0.9}},
            "ema",
            id="ema",
            marks=pytest.mark.slow,
        ),
        pytest.param({"engine": {"name": "vector", "precision": "bfloat16"}}, "loss", id="bfloat16"),
        pytest.param(
            {"broadcast": ["qsgd"], "transform": [{"name": "low_rank", "rank": 1}]},
            "bytes",
            id="both ways smaller",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_rest_goes_on_working(changes: dict[str, Any], written: str, tmp_path: Path) -> None:
    run = atoll.run(text(**changes), tmp_path / "run", progress=False)
    assert run.status == "finished"
    assert run.history[-1]["train_loss"] < 6
    assert written in run.history[-1]


def test_a_task_with_another_base_is_measured_apart(tmp_path: Path) -> None:
    setups = [set_up(Experiment.parse(text(seed=s)), "cpu") for s in (0, 1, 0)]
    columns = setups[0].dataset.train
    data = [evaluation_data(s, columns, setups[0].dataset.test) for s in setups]
    marks, signatures = [], Signatures()
    for setup, d in zip(setups, data, strict=True):
        request = Evaluate("test", torch.arange(2), setup.model)
        marks.append(signatures.evaluate(request, d))
    assert marks[0] == marks[2] != marks[1]


def test_a_layer_whose_weight_is_read_and_that_is_never_called_is_refused() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.out = nn.Linear(6, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.out(x @ self.inside.weight.T)
            return out

    with pytest.raises(ConfigError, match=r"the model never calls 'inside' as a layer"):
        simulate(Reads, {"rank": 1})
    assert simulate(Reads, {"rank": 1, "targets": ["out"]}).status == "finished"


def test_mistakes_in_the_table_are_shown_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match=r"task\.lora\.rank"):
        Experiment.parse(text(task={"lora": {"rank": 0}}))
    with pytest.raises(ConfigError, match=r"task\.lora\.target.*targets"):
        Experiment.parse(text(task={"lora": {"target": ["q"]}}))
    with pytest.raises(ConfigError, match=r"'q' is no linear layer .*q_proj, k_proj, v_proj, o_proj, gate_proj"):
        atoll.run(text(task={"model": "llama", "lora": {"targets": ["q"]}}), "unused", progress=False)
