"""Under which conditions a card runs a method, and what it is compared with: an experiment in, another one out.

Everything is the file as it was read (a raw dict), so that each condition is an ordinary experiment that anybody can
run alone. Those that do not depend on the method (training alone, pooled data, FedSGD) are shared by all methods.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Raw = dict[str, Any]

HOLDOUT = 0.2  # of each client's examples, where the file keeps none: per-client values need unseen ones
PACE = 0.05  # virtual seconds of a step on a device with slowness 1
DEVICES = "phones"
DROPOUT, TOGETHER = 0.3, 0.8  # the probability to be lost in a round, and the correlation of those who are
LATE = 0.3  # of the clients are too late, of the first seed
SKEW = 0.1  # Dirichlet's alpha
NOISE = 0.1  # variance of the last client's feature noise
SGD_ROUNDS = 4  # FedSGD gets so many times the rounds: it takes one step in each

_OF_THE_METHOD = ("transform", "broadcast", "reducer", "round", "server", "secure", "privacy", "clock", "cohort")


@dataclass(frozen=True)
class Known:
    """What conditions need to know of an experiment before it runs."""

    clients: int
    classes: int | None  # None: there are none
    deadline: float | None  # virtual seconds by which 1 - LATE of the clients report; None: it cannot be timed
    blind: bool = False  # can attackers not be let see honest updates, since sums are secret or noisy?
    metrics: tuple[str, ...] = ()  # that its runs have


@dataclass(frozen=True)
class Scenario:
    """One condition: its name in folders, what it is for, and what it makes of an experiment."""

    name: str
    axis: str
    title: str
    change: Callable[[Raw, Known], Raw]


def own(raw: Raw, known: Known) -> Raw:
    """The method as its file has it."""
    return raw


def local(raw: Raw, known: Known) -> Raw:
    """Every client alone, in every round: nobody waits for a turn."""
    return _yardstick(raw, {"name": "local", **_rate(raw)})


def central(raw: Raw, known: Known) -> Raw:
    """All data in one place, with as many passes over it."""
    return _yardstick(raw, {"name": "centralised", **_rate(raw)})


def fedsgd(raw: Raw, known: Known) -> Raw:
    """FedEval's baseline of cost: one gradient of all examples in a round."""
    changed = _yardstick(raw, {"name": "fedsgd", **_rate(raw, optimizer=False)})
    clock = {"clock": raw["clock"]} if "clock" in raw else {}
    local_table = {**changed["local"], "epochs": 1, "batch": 0}
    return {**changed, **clock, "local": local_table, "rounds": SGD_ROUNDS * raw["rounds"]}


def even(raw: Raw, known: Known) -> Raw:
    """The same rows dealt at random."""
    return {**raw, "partition": {"name": "iid", "clients": known.clients}}


def uneven_labels(raw: Raw, known: Known) -> Raw:
    return {**raw, "partition": {"name": "dirichlet", "clients": known.clients, "alpha": SKEW, "short": "borrow"}}


def uneven_features(raw: Raw, known: Known) -> Raw:
    return {**raw, "partition": {"name": "noise", "clients": known.clients, "level": NOISE}}


def stragglers(raw: Raw, known: Known) -> Raw:
    """A server that does not wait for the slowest, who are the same in every round."""
    return _clocked(raw, deadline=known.deadline) if known.deadline else raw


def dropouts(raw: Raw, known: Known) -> Raw:
    return _clocked(raw, dropout=DROPOUT)


def dropouts_together(raw: Raw, known: Known) -> Raw:
    return _clocked(raw, dropout=DROPOUT, dropout_correlation=TOGETHER)


def dropouts_by_data(raw: Raw, known: Known) -> Raw:
    """Who holds labels of the first half is lost more; without classes, who has more examples."""
    if known.classes is None:
        return _clocked(raw, dropout=DROPOUT, dropout_by_size=1.0)
    return _clocked(raw, dropout=DROPOUT, dropout_by_labels=list(range(max(1, known.classes // 2))))


YARDSTICKS = (
    Scenario("local", "effectiveness", "every client alone", local),
    Scenario("central", "effectiveness", "all data in one place", central),
    Scenario("fedsgd", "efficiency", "FedSGD", fedsgd),
)
OWN = Scenario("own", "effectiveness", "as its file has it", own)
DATA = (
    Scenario("iid", "robustness", "IID data", even),
    Scenario("labels", "robustness", f"non-IID labels: Dirichlet({SKEW:g})", uneven_labels),
    Scenario("features", "robustness", f"non-IID features: noise {NOISE:g}", uneven_features),
)
FAULTS = (
    Scenario("stragglers", "robustness", f"stragglers: {LATE:.0%} too late", stragglers),
    Scenario("dropouts", "robustness", f"dropouts: {DROPOUT:.0%}, each on its own", dropouts),
    Scenario("together", "robustness", f"dropouts: {DROPOUT:.0%}, correlation {TOGETHER:g}", dropouts_together),
    Scenario("by_data", "robustness", f"dropouts: {DROPOUT:.0%}, by what clients hold", dropouts_by_data),
)


def prepared(raw: Mapping[str, Any], rounds: int | None, clock: bool) -> Raw:
    """The file as a card runs it: examples held out, virtual time if it can be had, and fewer rounds if asked."""
    changed: Raw = copy.deepcopy(dict(raw))
    evaluate = dict(changed.get("evaluate") or {})
    if not evaluate.get("holdout"):
        evaluate["holdout"] = HOLDOUT
    changed["evaluate"] = evaluate
    if rounds is not None:
        changed["rounds"] = min(rounds, int(changed["rounds"]))
    if clock and not changed.get("clock"):
        changed["clock"] = {"seconds_per_step": PACE, "devices": DEVICES}
    return changed


def straggling_clock() -> Raw:
    """By which it is decided who is late: steps and devices, without links."""
    return {"seconds_per_step": PACE, "slowness": {"median": 1.0, "sigma": 0.5}}


def _clocked(raw: Raw, **faults: Any) -> Raw:
    return {**raw, "clock": {**straggling_clock(), **faults}}


def _yardstick(raw: Raw, algorithm: Raw) -> Raw:
    kept = {k: v for k, v in raw.items() if k not in (*_OF_THE_METHOD, "label", "attack", "stop", "local")}
    plain = {k: v for k, v in raw.get("local", {}).items() if k != "privacy"}
    return {**kept, "local": plain, "algorithm": algorithm}


def _rate(raw: Raw, optimizer: bool = True) -> Raw:
    """The method's own learning rate, and its optimizer where the yardstick has one."""
    entry = raw["algorithm"] if isinstance(raw["algorithm"], Mapping) else {"name": raw["algorithm"]}
    names = ("lr", "optimizer") if optimizer else ("lr",)
    return {name: entry[name] for name in names if name in entry}
