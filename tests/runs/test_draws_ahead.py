"""Noise that is drawn for many rounds at once leaves a run as it is, whoever draws and whenever it goes on."""

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import atoll
from atoll import rng
from atoll.core import Chain, Total, Transform
from atoll.rng import ahead
from atoll.rounds import server_key
from atoll.transforms.adaptive import AdaptiveClip
from atoll.transforms.weights import EqualWeights
from atoll.tree import Tree

CHAIN: list[dict[str, Any]] = [
    {"name": "equal_weights"},
    {"name": "adaptive_clip"},
    {"name": "gaussian_noise", "noise_multiplier": 1.0},
]


def models(rounds: int = 6, **options: Any) -> list[str]:
    """The digests of a small private run's models."""
    x = rng.normal(rng.key("x"), (40, 5))
    torch.manual_seed(0)
    run = atoll.simulate(
        nn.Linear(5, 2),
        (x, (x[:, 0] > 0).long()),
        clients=[range(i, 40, 8) for i in range(8)],
        algorithm={"name": "fedavg", "lr": 0.1},
        rounds=rounds,
        transforms=CHAIN,
        engine="vector",
        device="cpu",
        progress=False,
        **options,
    )
    return [str(line["model"]) for line in run.history]


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many keys were drawn from in every call."""
    calls: list[int] = []
    normal_of_keys = ahead.normal_of_keys

    def counted(keys: Tensor, n: int) -> Tensor:
        calls.append(len(keys))
        return normal_of_keys(keys, n)

    monkeypatch.setattr(ahead, "normal_of_keys", counted)
    ahead._expected.clear()
    ahead._places.clear()
    return calls


def test_noise_of_a_run_is_drawn_in_one_call_and_is_the_noise_of_each_round(
    blocks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = models()
    assert blocks == [6]  # and not once a round: the keys that were foretold are those that are drawn from
    monkeypatch.setattr(ahead, "normal", lambda key, n: None)
    assert models() == together


def test_a_run_foretells_some_rounds_at_a_time(blocks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = models()
    monkeypatch.setattr(ahead, "ROUNDS", 4)
    ahead._expected.clear()
    ahead._places.clear()
    assert models() == whole
    assert blocks == [6, 4, 2]


def test_a_resumed_run_goes_on_with_the_same_noise(blocks: list[int], tmp_path: Path) -> None:
    whole = models(out=tmp_path / "whole")

    def stop_after_three(done: int, rounds: int, entry: Any) -> None:
        if done == 3:
            signal.raise_signal(signal.SIGINT)

    assert len(models(out=tmp_path / "cut", watch=stop_after_three)) == 3
    ahead._expected.clear()
    ahead._places.clear()
    assert models(out=tmp_path / "cut", resume=True) == whole
    assert blocks == [6, 3]  # the second run shared the first one's draws; the third began in the fourth round


@dataclass(frozen=True)
class Spy(Transform):
    """Writes down what its server's side is to draw from."""

    keys: list[Tensor] = field(default_factory=list)

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        self.keys.append(key)
        return total, state


def test_a_chain_foretells_the_keys_that_it_hands_out() -> None:
    first, second = Spy(), Spy()
    adaptive = AdaptiveClip(unit=1.0)
    chain = Chain((EqualWeights(), first, adaptive, second))
    value = {"x": torch.ones(2)}
    state = chain.init(value)[0]
    keys = torch.stack([server_key(rng.key(3, "round", i)) for i in range(4)])
    total = Total({**value, "within": torch.zeros(())}, torch.tensor(2.0), torch.tensor(2.0))
    for key in keys:
        chain.server(total, state, key)
    foretold = chain.server_keys(keys)
    assert len(foretold) == 2  # adaptive_clip draws nothing on the server
    assert torch.equal(foretold[0], torch.stack(first.keys))
    assert torch.equal(foretold[1], torch.stack(second.keys))
    assert not torch.equal(foretold[0], foretold[1])
