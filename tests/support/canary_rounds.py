"""Rounds with canaries and without a driver: the slow reference of the audit's tests."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap

from atoll import rng, tree
from atoll.attacks import Canaries, drawn, without_noise
from atoll.core import Chain, Spec, Total, Transform, Update
from atoll.data.sampling import Sampler
from atoll.transforms.weights import EqualWeights
from atoll.tree import Tree

KEY = rng.key("canaries")
DELTA = 1e-3
SMALL: Tree = {"delta": {"w": torch.zeros(3, 5), "b": torch.zeros(4)}, "control": torch.zeros(6)}


def like(size: int) -> Tree:
    return {"delta": {"w": torch.zeros(size // 100, 90), "b": torch.zeros(size // 10)}}


def chain_of(*layers: Transform, spec: Spec) -> Chain:
    return Chain((EqualWeights(), *layers)).bind(spec)[0]


@dataclass
class Run:
    """Rounds without a driver: the slow reference. Clients send random updates, all through the real chain.

    Of a large cohort only the first eight clients send anything: what they send is not the point.
    """

    chain: Chain
    sampler: Sampler
    update: Tree
    canaries: Canaries
    population: int = 8
    seed: int = 0
    knows: bool = True  # does the adversary know what the clients sent?
    by_law: bool = False  # are canaries drawn by what the sampler says of itself?

    def rounds(self, first: int, last: int, state: Tree | None = None) -> Tree:
        memory = self.chain.init(self.update)[1]
        state = self.chain.init(self.update)[0] if state is None else state
        for r in range(first, last):
            state = self.round(r, state, memory, rng.key(self.seed, "round", r))
        return state

    def round(self, number: int, state: Tree, memory: Tree, key: Tensor) -> Tree:
        ids, how = self.sampler.sample(self.population, number, rng.key(self.seed, "cohort"))
        total = self.honest(ids[:8], state, memory, key)
        run_key = rng.key(self.seed, "cohort")
        often = None if self.by_law else drawn(self.sampler, self.population, len(self.canaries), number, run_key)
        more = self.canaries.contribution(number, how, self.chain, state, rng.fold_name(key, "canaries"), often)
        after, new = self.chain.server(
            total if more is None else total.merge(more), state, rng.fold_name(key, "server")
        )
        clear = without_noise(self.chain).server(total, state, rng.fold_name(key, "server"))[0]
        self.canaries.observe(after, clear if self.knows else None)
        return new

    def honest(self, ids: Tensor, state: Tree, memory: Tree, key: Tensor) -> Total:
        def one(k: Tensor) -> Update:
            counter = iter(range(99))
            value = tree.map(lambda x: rng.normal(rng.fold(k, next(counter)), tuple(x.shape)), self.update)
            return self.chain.client(Update(value, torch.ones(())), state, memory, rng.fold(k, 99))[0]

        if not len(ids):
            empty = one(rng.fold_name(key, "nobody"))
            return Total(tree.zeros_like(empty.value), torch.zeros(()), torch.zeros(()))
        sent = vmap(one)(torch.stack([rng.fold_name(key, int(i), n) for n, i in enumerate(ids)]))
        value = tree.map(lambda x: x.sum(0), sent[0])
        return Total(value, sent[1].sum(), torch.tensor(float(len(ids))))


def audited(
    layers: tuple[Transform, ...],
    sampler: Sampler,
    rounds: int,
    count: int,
    seed: int = 0,
    size: int | None = None,
    **more: object,
) -> Canaries:
    update = like(count if size is None else size)
    fixed = {"population": 8, **more}["population"]
    min_separation = getattr(sampler, "min_separation", 1)
    cohort = getattr(sampler, "size", fixed)
    spec = Spec(rounds=rounds, size=tree.count(update), cohort=cohort, min_separation=min_separation)  # type: ignore[arg-type]
    planted = Canaries.plant(count, update, rng.key(seed, "planted"), "cpu")
    Run(chain_of(*layers, spec=spec), sampler, update, planted, seed=seed, **more).rounds(0, rounds)  # type: ignore[arg-type]
    return planted
