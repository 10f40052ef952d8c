"""What canaries show of honest noise and of noise silently halved, beside what is claimed: a table for docs/audits.md.

    python benchmarks/canaries.py

A few rounds of equal_weights, clip_l2 and gaussian_noise on 10,000 numbers, everyone present; medians over five keys.
"""

from __future__ import annotations

from statistics import median

import torch
from torch import Tensor

from atoll import rng
from atoll.attacks import Canaries
from atoll.core import Chain, Participation, Spec, Total
from atoll.privacy import gaussian_epsilon
from atoll.transforms import ClipL2, EqualWeights, GaussianNoise
from atoll.tree import Tree

ROUNDS = 4
LIKE: Tree = {"delta": torch.zeros(10_000)}


class Halved(GaussianNoise):
    """Half the noise that its event says."""

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        return GaussianNoise(self.noise_multiplier / 2, sensitivity=self.sensitivity).server(total, state, key)


def bound(noise: GaussianNoise, count: int, delta: float, seed: int) -> float:
    """The lower bound on epsilon from one run."""
    chain, _ = Chain((EqualWeights(), ClipL2(0.5), noise)).bind(Spec(rounds=ROUNDS))
    state, _ = chain.init(LIKE)
    canaries = Canaries.plant(count, LIKE, rng.key(seed, "canaries"), "cpu")
    for r in range(ROUNDS):
        key = rng.key(seed, "round", r)
        total = canaries.contribution(r, Participation("everyone", 100, 100), chain, state, key)
        assert total is not None
        total, state = chain.server(total, state, rng.fold_name(key, "server"))
        canaries.observe(total)
    return float(canaries.verdict(delta)["epsilon_lower"])


def main() -> None:
    print("| delta | canaries | noise_multiplier | claimed | honest, at least | halved, true | halved, at least |")
    print("|---|---|---|---|---|---|---|")
    for delta in (1e-3, 1e-5):
        for count in (1000, 8000):
            for noise_multiplier in (4.0, 2.0, 1.0):
                claimed, true = (
                    gaussian_epsilon(m / ROUNDS**0.5, delta) for m in (noise_multiplier, noise_multiplier / 2)
                )
                honest, halved = (
                    median(bound(kind(noise_multiplier), count, delta, seed) for seed in range(5))
                    for kind in (GaussianNoise, Halved)
                )
                print(
                    f"| {delta:g} | {count:,} | {noise_multiplier:g} | {claimed:.2f} | {honest:.2f} "
                    f"| {true:.2f} | {halved:.2f} |"
                )


if __name__ == "__main__":
    main()
