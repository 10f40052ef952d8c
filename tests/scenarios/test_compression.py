"""Compressed runs: engines and stacks agree, odd models and zeros pass, a resumed run is an undisturbed one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import atoll
from atoll import tree
from atoll.errors import AtollError, DivergenceError
from atoll.experiment import Experiment
from atoll.runs import Run, run_together


class Odd(nn.Module):
    """BatchNorm with its counter, a parameter without axes, one of a single number, one and a buffer of none."""

    def __init__(self, inputs: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.mix, self.norm, self.out = nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, outputs)
        self.scale, self.shift = nn.Parameter(torch.ones(())), nn.Parameter(torch.zeros(1))
        self.nobody = nn.Parameter(torch.zeros(0, 4))
        self.register_buffer("nothing", torch.zeros(0))

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.norm(self.mix(x.flatten(1))) * self.scale + self.shift
        logits: Tensor = self.out(hidden.relu())
        return logits


class Halves(nn.Module):
    """Its numbers have 16 bits, also the one without axes."""

    def __init__(self, inputs: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(64, 6), nn.Linear(6, outputs)
        self.scale = nn.Parameter(torch.ones(()))
        self.to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.mix(x.flatten(1).to(torch.bfloat16)) * self.scale
        logits: Tensor = self.out(hidden.relu()).float()
        return logits


CHAINS: dict[str, list[Any]] = {
    "top_k": [{"name": "top_k", "share": 0.1}],
    "half of what was held back": [{"name": "top_k", "share": 0.1, "feedback": 0.5}],
    "rand_k": [{"name": "rand_k", "share": 0.2}],
    "rand_k, feedback": [{"name": "rand_k", "share": 0.2, "feedback": 1.0}],
    "low_rank": [{"name": "low_rank", "rank": 2}],
    "qsgd": [{"name": "qsgd", "levels": 8}],
    "uniform": [{"name": "uniform_quantise", "bits": 4}],
    "rotated": [{"name": "uniform_quantise", "bits": 2, "rotate": True}],
    "drive": ["drive"],
    "half": ["half"],
    "sign": [{"name": "sign", "feedback": 1.0}],
    "majority": ["equal_weights", {"name": "sign", "size": "majority", "step": 0.01}],
    "ternary": [{"name": "ternary", "share": 0.1}],
    "mask_layers": [{"name": "mask_layers", "send": ["out*", "norm.*"]}],
    "shared_mask": [{"name": "shared_mask", "share": 0.2}],
    "masked, clipped, secure": [
        "equal_weights",
        {"name": "clip_l2", "max_norm": 1.0},
        {"name": "shared_mask", "share": 0.2},
        {"name": "fixed_point", "step": 0.001},
        {"name": "secure_sum", "bits": 24},
    ],
    "sketch": [{"name": "sketch", "columns": 100, "share": 0.1}],
    "relevance": [{"name": "relevance", "threshold": 0.6}],
    "top_k, half": [{"name": "top_k", "share": 0.1}, "half"],
    "low_rank, half, zstd": [{"name": "low_rank", "rank": 2}, "half", {"name": "entropy", "code": "zstd"}],
    "mask_layers, qsgd, entropy": [
        {"name": "mask_layers", "send": ["*.weight"]},
        {"name": "qsgd", "levels": 3},
        "entropy",
    ],
    "relevance, ternary": [{"name": "relevance", "threshold": 0.7}, {"name": "ternary", "share": 0.1}],
    "clipped, noisy": [
        "equal_weights",
        {"name": "clip_l2", "max_norm": 1.0},
        {"name": "top_k", "share": 0.1, "feedback": 0.0},
        {"name": "gaussian_noise", "noise_multiplier": 0.1},
    ],
}
REMEMBERING = ["top_k", "half of what was held back", "low_rank", "ternary", "shared_mask", "sketch", "relevance"]


def experiment(chain: Sequence[Any], **changes: Any) -> dict[str, Any]:
    return {
        "rounds": 3,
        "data": "digits",
        "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.5},
        "cohort": {"name": "fixed", "size": 4},
        "task": {"model": {"name": f"{__name__}:Odd"}, "batch_norm": "average"},
        "local": {"max_steps": 3},
        "algorithm": {"name": "fedavg", "lr": 0.1},
        "transform": list(chain),
        "engine": "vector",
        "evaluate": {"every": 3},
        **changes,
    }


def close(a: Run, b: Run) -> None:
    """The same model up to rounding, and the same bytes."""
    for (path, x), (_, y) in zip(tree.paths(a.params), tree.paths(b.params), strict=True):
        assert torch.allclose(x, y, atol=1e-4), path
        assert torch.isfinite(x).all(), path
    assert [e["bytes"] for e in a.history] == [e["bytes"] for e in b.history]


@pytest.mark.parametrize("name", CHAINS)
def test_one_by_one_and_stacked_agree_on_an_odd_model(name: str, tmp_path: Path) -> None:
    runs = [atoll.run(experiment(CHAINS[name], engine=e), tmp_path / e) for e in ("loop", "vector")]
    close(*runs)
    assert runs[0].history[-1]["bytes"]["up"] > 0


@pytest.mark.parametrize("name", [name for name in CHAINS if "clipped" not in name])  # bounds and noise have 32 bits
def test_a_model_of_16_bits_stays_one(name: str, tmp_path: Path) -> None:
    chain = [{**t, "send": ["out*"]} if "mask_layers" in str(t) else t for t in CHAINS[name]]
    task = {"model": {"name": f"{__name__}:Halves"}}
    run = atoll.run(experiment(chain, task=task), tmp_path)
    assert {x.dtype for x in run.params.values()} == {torch.bfloat16}
    assert all(torch.isfinite(x).all() for x in run.params.values())
    assert len({line["bytes"]["down"] for line in run.history}) == 1


@pytest.mark.parametrize("engine", ["vector", "loop"])
def test_an_update_that_is_no_number_is_named_before_a_coder_is_given_it(engine: str, tmp_path: Path) -> None:
    chain = [{"name": "qsgd", "levels": 4}, "entropy"]
    given = experiment(chain, algorithm={"name": "fedavg", "lr": 1e38}, engine=engine)
    with pytest.raises(DivergenceError, match="not finite"):
        atoll.run(given, tmp_path / "ends")
    assert atoll.run({**given, "on_divergence": "drop"}, tmp_path / "goes on").status == "finished"


@pytest.mark.parametrize("name", REMEMBERING)
def test_several_runs_as_one_stack_are_what_each_is_alone(name: str, tmp_path: Path) -> None:
    given = [Experiment.parse(experiment(CHAINS[name], seed=seed)) for seed in (0, 1)]
    together = run_together(given, [tmp_path / "a", tmp_path / "b"])
    alone = [atoll.run(experiment(CHAINS[name], seed=seed), tmp_path / f"alone {seed}") for seed in (0, 1)]
    for a, b in zip(together, alone, strict=True):
        assert isinstance(a, Run)
        close(a, b)


@pytest.mark.parametrize("name", [name for name in CHAINS if name not in ("majority", "clipped, noisy")])
def test_clients_that_learn_nothing_change_nothing(name: str, tmp_path: Path) -> None:
    still = {"algorithm": {"name": "fedavg", "lr": 1e-30}, "task": {"model": "linear"}, "rounds": 2}
    chain = [{**t, "send": ["*weight"]} if "mask_layers" in str(t) else t for t in CHAINS[name]]
    runs = [atoll.run(experiment(chain, **still), tmp_path / "a"), atoll.run(experiment([], **still), tmp_path / "b")]
    for (path, x), (_, y) in zip(*(tree.paths(run.params) for run in runs), strict=True):
        assert torch.equal(x, y), path


class StopError(Exception):
    """What a test stops a run with."""


@pytest.mark.parametrize("name", REMEMBERING)
def test_a_run_resumed_in_its_middle_is_an_undisturbed_one(name: str, tmp_path: Path) -> None:
    given = experiment(CHAINS[name], rounds=5, checkpoint={"every": 2})

    def watch(done: int, rounds: int, entry: object) -> None:
        if done == 3:
            raise StopError

    with pytest.raises(StopError):
        atoll.run(given, tmp_path / "a", watch=watch)
    runs = [atoll.run(given, tmp_path / folder, resume=True) for folder in ("a", "b")]
    parts = [torch.load(r.folder / "checkpoint.pt", weights_only=True) for r in runs]
    assert tree.digest(runs[0].params) == tree.digest(runs[1].params)
    assert parts[0]["digest"] == parts[1]["digest"]
    assert [e["bytes"] for e in runs[0].history] == [e["bytes"] for e in runs[1].history]


REFUSED: dict[str, tuple[list[Any], str]] = {
    "a rank above every matrix": (
        [{"name": "low_rank", "rank": 60}],
        "low_rank: rank 60 makes no tensor of this model smaller. Use a rank of",
    ),
    "a pattern that matches nothing": (
        [{"name": "mask_layers", "send": ["out*", "conv*"]}],
        "mask_layers.send: ['conv*'] match no tensor. There are delta/",
    ),
    "a coder with nothing to code": (["entropy"], "entropy: codes what compressors before it send, and there is none"),
    "a share of nothing": (
        [{"name": "top_k", "share": 0.0}],
        "transform.0.share: must be above 0 (got 0.0). It is the share of the entries that are sent",
    ),
    "more bits than a float has": (
        [{"name": "uniform_quantise", "bits": 33}],
        "transform.0.bits: must be at most 16 (got 33). They are bits of every number that is sent: half has 16",
    ),
    "a private run with residuals": (
        [
            "equal_weights",
            {"name": "clip_l2", "max_norm": 1.0},
            {"name": "top_k", "share": 0.1},
            {"name": "gaussian_noise", "noise_multiplier": 1.0},
        ],
        "(top_k adds what it held back, after clipping): put clip_l2 before it",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_before_the_first_round(name: str, tmp_path: Path) -> None:
    chain, words = REFUSED[name]
    with pytest.raises(AtollError) as refused:
        atoll.run(experiment(chain), tmp_path / "run")
    assert words in str(refused.value)
    lines = tmp_path / "run" / "record.jsonl"
    assert not lines.exists() or not lines.read_text()


def test_bytes_are_counted_for_what_was_sent(tmp_path: Path) -> None:
    plain = atoll.run(experiment([]), tmp_path / "plain").history[-1]["bytes"]
    sparse = atoll.run(experiment(CHAINS["top_k"]), tmp_path / "sparse").history[-1]["bytes"]
    assert sparse["up"] < plain["up"] / 2
    assert sparse["down"] == plain["down"]
    silenced = atoll.run(experiment([{"name": "relevance", "threshold": 1.0}]), tmp_path / "silent").history
    assert silenced[0]["bytes"]["up"] >= plain["up"] > 5 * silenced[1]["bytes"]["up"]
