"""What every client contributes to a model, with error bars and what it took to find out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from atoll import rng
from atoll.analysis.contribution.coalitions import Coalitions, check_clients
from atoll.analysis.contribution.reconstructed import RoundCoalitions, recorded_rounds, value_of
from atoll.analysis.contribution.shapley import (
    Floats,
    Shares,
    exact_shapley,
    guided_truncation,
    leave_one_out,
    summed,
    truncated_monte_carlo,
)
from atoll.analysis.contribution.trained import Told, TrainedCoalitions, check_cohort
from atoll.errors import ConfigError
from atoll.experiment import Device, Experiment, Setup, make_partition, set_up
from atoll.stats import half_width

ContributionMethod = Literal["loo", "tmc", "gtg", "exact"]
MOST_EXACT = 12
_WORDS = {
    "loo": "leave one out: the whole federation minus the federation without the client",
    "tmc": "TMC-Shapley (Ghorbani & Zou, 2019), coalitions trained",
    "gtg": "GTG-Shapley (Liu et al., 2022), coalitions made from recorded updates",
    "exact": "Shapley's value, all coalitions trained",
}


@dataclass(frozen=True)
class ContributionOptions:
    """How it is found out."""

    method: ContributionMethod = "gtg"
    seeds: int = 1
    permutations: int = 20  # of tmc
    tolerance: float = 0.01  # of the metric: who is so near to everybody is everybody
    between: float = 0.0  # of gtg: rounds that change the metric by no more are passed over
    metric: str | None = None
    device: Device = "auto"


@dataclass(frozen=True, eq=False)
class Contribution:
    """Every client's share of what training gained; positive is better, whatever the metric."""

    method: ContributionMethod
    metric: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    by_seed: tuple[Shares, ...]
    gained: float  # by everybody over the model at the start, mean over seeds
    trainings: int
    evaluations: int
    seconds: float
    notes: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()  # of every seed, the digest of its clients

    @property
    def values(self) -> Floats:
        """Means over seeds."""
        return np.mean([one.values for one in self.by_seed], axis=0)  # type: ignore[no-any-return]

    @property
    def halves(self) -> Floats | None:
        """Half of a 95 % interval: over seeds where there are several, else of sampling; None where neither is."""
        if len(self.by_seed) > 1:
            return half_width(np.array([one.values for one in self.by_seed]))
        return None if self.method in ("loo", "exact") else self.by_seed[0].halves

    @property
    def said(self) -> str:
        return _WORDS[self.method]


def contribution(
    experiment: Experiment, folder: Path, options: ContributionOptions, told: Told = lambda count: None
) -> Contribution:
    """Value every client of an experiment. Trainings of coalitions are run folders below `folder`."""
    _check(options)
    setup = set_up(experiment, options.device)
    metric = options.metric or setup.metric
    if metric not in setup.metrics:
        raise ConfigError(f"--metric: there is no {metric!r}. Metrics: {', '.join(setup.metrics)}.")
    if setup.dataset.test is None:
        raise ConfigError("data: has no test data, by which coalitions are valued. Use data with a test set.")
    sign = 1.0 if setup.metrics[metric].better == "higher" else -1.0
    began = time.perf_counter()
    seeds = [experiment.model_copy(update={"seed": experiment.seed + i}) for i in range(options.seeds)]
    _check_seeds(seeds, setup, options)
    value = _by_updates if options.method == "gtg" else _by_training
    found = [value(one, setup, folder, options, metric, sign, told) for one in seeds]
    names = setup.training.client_names or tuple(f"client {i}" for i in range(setup.training.size))
    return Contribution(
        options.method,
        metric,
        tuple(names),
        tuple(setup.training.sizes.tolist()),
        tuple(one.shares for one in found),
        float(np.mean([one.gained for one in found])),
        sum(one.trainings for one in found),
        sum(one.evaluations for one in found),
        time.perf_counter() - began,
        tuple(dict.fromkeys(note for one in found for note in one.notes)),
        tuple(one.split for one in found),
    )


@dataclass(frozen=True, eq=False)
class _Valued:
    """One seed."""

    shares: Shares
    gained: float
    trainings: int
    evaluations: int
    notes: tuple[str, ...] = ()
    split: str = ""


def _by_training(
    experiment: Experiment,
    setup: Setup,
    folder: Path,
    options: ContributionOptions,
    metric: str,
    sign: float,
    told: Told,
) -> _Valued:
    check_cohort(experiment)
    n = setup.training.size
    if options.method == "exact":
        check_clients(n, MOST_EXACT, "exact")
    trained = TrainedCoalitions(experiment, n, metric, sign, folder, options.device, told)
    game = Coalitions(n, trained)
    rules: dict[str, Callable[[], Shares]] = {
        "loo": lambda: leave_one_out(game),
        "exact": lambda: exact_shapley(game),
        "tmc": lambda: truncated_monte_carlo(game, options.permutations, options.tolerance, _key(experiment)),
    }
    shares = rules[options.method]()
    empty, whole = game.worth([0, game.whole])
    notes = [f"{trained.reused} of the trainings were there already"] if trained.reused else []
    notes += [f"{shares.truncated:.0%} of the steps were cut short"] if shares.truncated else []
    return _Valued(shares, whole - empty, game.count, game.count, tuple(notes), setup.partition.digest())


def _by_updates(
    experiment: Experiment,
    setup: Setup,
    folder: Path,
    options: ContributionOptions,
    metric: str,
    sign: float,
    told: Told,
) -> _Valued:
    n = setup.training.size
    rounds: list[Shares] = []
    evaluations, passed = 0, 0
    with recorded_rounds(experiment, options.device, setup) as (loop, played):
        split = loop.setup.partition.digest()
        before = first = value_of(loop, loop.state.round["server"], metric, sign)
        for one in played:
            after = value_of(loop, one.after, metric, sign)
            told(1)
            if abs(after - before) <= options.between:
                passed, before = passed + 1, after
                continue
            game = Coalitions(len(one.ids), RoundCoalitions(loop, one, metric, sign))
            game.known |= {0: before, game.whole: after}
            shares = guided_truncation(game, options.tolerance, rng.fold_host(_key(experiment), one.number))
            rounds.append(_of_all(shares, one.ids.numpy(), n))
            evaluations, before = evaluations + game.count - 1, after
    whole = summed(rounds) if rounds else Shares(np.zeros(n), np.zeros(n))
    count, unsettled = len(rounds) + passed, sum(not one.converged for one in rounds)
    notes = [f"{passed} of {count} rounds changed the metric too little and were passed over"] if passed else []
    notes += [f"{unsettled} of {count} rounds had not settled after 20 times n orders"] if unsettled else []
    notes += [f"{whole.truncated:.0%} of the steps were cut short"] if whole.truncated else []
    return _Valued(whole, before - first, 1, evaluations, tuple(notes), split)


def _of_all(shares: Shares, ids: NDArray[np.int64], n: int) -> Shares:
    """A round's shares among all clients: who was not there adds nothing."""
    values, errors = np.zeros(n), np.zeros(n)
    values[ids], errors[ids] = shares.values, shares.errors
    return replace(shares, values=values, errors=errors)


def _key(experiment: Experiment) -> Tensor:
    return rng.key(experiment.seed, "contribution")


def _check_seeds(seeds: Sequence[Experiment], setup: Setup, options: ContributionOptions) -> None:
    """Values are of clients, so that a mean over seeds is one only where these are the same clients."""
    if len(seeds) < 2:
        return
    if seeds[0].attack is not None and seeds[0].attack.get("share"):
        raise ConfigError(
            "attack.share: draws other attackers at every seed, and means over seeds would be of both kinds. Name them "
            "(attack.clients), or use --seeds 1."
        )
    own = {make_partition(one, setup.dataset).digest() for one in seeds}
    if options.method != "gtg" and len(own) > 1:
        raise ConfigError(
            "--seeds: every seed draws its own clients here, so that client 0 is not the same one. Use --seeds 1, "
            "natural clients (partition.name = 'natural'), or --method gtg, which keeps those of the first seed."
        )


def _check(options: ContributionOptions) -> None:
    wrong: list[str] = []
    if options.seeds < 1:
        wrong.append(f"--seeds: must be above 0 (got {options.seeds}).")
    if options.permutations < 2:
        wrong.append(f"--permutations: must be above 1, or there is no error bar (got {options.permutations}).")
    if options.tolerance < 0:
        wrong.append(f"--tolerance: must not be below 0 (got {options.tolerance:g}).")
    if wrong:
        raise ConfigError(wrong)


def as_json_table(found: Contribution) -> dict[str, Any]:
    """Everything, for programs."""
    halves = found.halves
    clients = [
        {"client": name, "examples": size, "value": float(value), "half": None if halves is None else float(halves[i])}
        for i, (name, size, value) in enumerate(zip(found.names, found.sizes, found.values, strict=True))
    ]
    cost = {"trainings": found.trainings, "evaluations": found.evaluations, "seconds": found.seconds}
    return {"method": found.method, "metric": found.metric, "gained": found.gained, "clients": clients, **cost}
