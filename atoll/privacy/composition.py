"""From an event to what an accountant can add up: plain mechanisms, how often, and what was assumed.

Only amplification that holds for the sampler that ran is used; everything else is counted without it:

| sampler | accounted as | adjacency |
|---|---|---|
| poisson | Poisson-sampled Gaussian or Laplace | add-or-remove |
| without_replacement | Gaussian sampled without replacement, its sensitivity doubled | replace-one |
| with_replacement | Gaussian, by how often one unit is drawn with all but a small probability | zero-out |
| cyclic | every turn of one unit: ceil(rounds / min_separation), no amplification | zero-out |
| cyclic_poisson | every turn of one unit, Poisson-sampled at rate cohort x min_separation / population | zero-out |
| everyone | every round, no amplification | zero-out |
| any (a trace, a stranger's sampler) | every round, no amplification | zero-out |

Banded factorisation is amplified where a coin that nobody sees decides at every turn (Choquette-Choo et al., 2023,
theorem 4). Take a unit whose turns are rounds t, t + b, ..., b at least the bands, everybody else's coins as they fell.
To release x is to release y = C x, whose noise is independent. The coin of round t moves y in rounds t to t + b - 1 and
nowhere else, by column t of C (length at most 1) times what the unit sends (at most 1): a Gaussian of noise multiplier
z, sampled once. The rest of y in those rounds is the same function of its past with and without the unit, and the coin
is independent of that past. So the run is an adaptive composition of ceil(rounds / b) sampled Gaussians.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from atoll.errors import ConfigError
from atoll.privacy.events import (
    Approximate,
    Banded,
    Composed,
    DistributedDiscreteGaussian,
    DistributedSkellam,
    Event,
    Gaussian,
    Laplace,
    NotPrivate,
    Pure,
    Sampled,
    Shuffled,
    TreeAggregation,
    max_participations,
)
from atoll.privacy.shuffling import shuffled

Adjacency = Literal["add-or-remove", "replace-one", "zero-out"]
Plain = Gaussian | Laplace | DistributedDiscreteGaussian | DistributedSkellam | Pure | Approximate


@dataclass(frozen=True)
class Term:
    """A plain mechanism, so many times, each time on a cohort drawn afresh (or on everyone)."""

    event: Plain
    count: int
    rate: float | None = None  # Poisson-sampled, with this probability
    without_replacement: tuple[int, int] | None = None  # cohort of population, without replacement
    with_replacement: tuple[int, int] | None = None  # draws of population, with replacement


@dataclass(frozen=True)
class Terms:
    """A whole account: its terms, what neighbours differ in, what was assumed, and why there is no guarantee."""

    terms: tuple[Term, ...] = ()
    adjacency: Adjacency = "add-or-remove"
    notes: tuple[str, ...] = ()
    broken: str | None = None


@dataclass(frozen=True)
class _Accumulated:
    terms: tuple[Term, ...] = ()
    notes: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    fixed: bool = False  # who may take part is fixed, so a unit is blanked out, not removed

    def __add__(self, other: _Accumulated) -> _Accumulated:
        return _Accumulated(
            self.terms + other.terms,
            tuple(dict.fromkeys(self.notes + other.notes)),
            tuple(dict.fromkeys(self.broken + other.broken)),
            self.fixed or other.fixed,
        )


def flatten(event: Event) -> Terms:
    """What an accountant adds up for this event.

    >>> flatten(Sampled(Gaussian(1.0), "everyone", 10, 10)).adjacency
    'zero-out'
    >>> flatten(Composed(((Sampled(Gaussian(1.0), "cyclic", 100, 5, min_separation=4), 10),))).terms
    (Term(event=Gaussian(noise_multiplier=1.0), count=3, rate=None, without_replacement=None, with_replacement=None),)
    """
    collected = _walk(event, 1)
    if collected.broken:
        return Terms(notes=collected.notes, broken="; ".join(collected.broken))
    if not any(term.without_replacement for term in collected.terms):
        return Terms(collected.terms, "zero-out" if collected.fixed else "add-or-remove", collected.notes)
    if any(term.rate for term in collected.terms):
        return Terms(
            notes=collected.notes,
            broken="Poisson sampling is accounted for adding or removing a unit, sampling without replacement for "
            "replacing one: there is no common adjacency",
        )
    doubled = tuple(_double(term) for term in collected.terms)
    note = "replacing a unit moves the sum twice as far as removing it: noise counts for half its noise multiplier"
    return Terms(doubled, "replace-one", (*collected.notes, note))


def explain(event: Event) -> str:
    """In words: how the event was accounted, and for which neighbours.

    >>> print(explain(Composed(((Sampled(Gaussian(1.0), "poisson", 1000, 10), 50),))))
    adjacency add-or-remove; amplified by Poisson sampling at rate 0.01
    """
    account = flatten(event)
    head = f"not private: {account.broken}" if account.broken else f"adjacency {account.adjacency}"
    return "; ".join((head, *account.notes))


def _walk(event: Event, count: int) -> _Accumulated:
    if count == 0:
        return _Accumulated()
    if isinstance(event, NotPrivate):
        return _Accumulated(broken=(event.why,))
    if isinstance(event, Composed):
        return sum((_walk(part, count * n) for part, n in event.parts), _Accumulated())
    if isinstance(event, Sampled):
        return _sampled(event, count)
    if isinstance(event, Banded | TreeAggregation):
        return _whole_run(event, count)
    if isinstance(event, Shuffled):
        return _in_a_crowd(event, count)
    if isinstance(event, Gaussian | DistributedDiscreteGaussian | DistributedSkellam) and event.noise_multiplier == 0:
        return _Accumulated(broken=("the noise multiplier is 0: no noise is added",))
    if isinstance(event, Laplace) and event.scale == 0:
        return _Accumulated(broken=("the noise scale is 0: no noise is added",))
    return _Accumulated((Term(event, count),))


def _in_a_crowd(event: Shuffled, count: int) -> _Accumulated:
    """Shuffles amplify one by one, each at its own delta, and compose as what they are then."""
    gained = amplified(event)
    crowd = f"shuffling at least {event.reports} reports of epsilon {event.local.epsilon:g}"
    note = (
        f"amplified by {crowd} to {gained.epsilon:.4g} at delta {gained.delta:.4g}: the mix and the server do not "
        "collude, so many clients add their noise, and none of them tells which report is its own"
        if isinstance(gained, Approximate)
        else f"{crowd} amplifies nothing"
    )
    return _Accumulated((Term(gained, count),), (note,), fixed=True)


@lru_cache(maxsize=256)
def amplified(event: Shuffled) -> Pure | Approximate:
    """What one shuffle did to one client; the local mechanism where nothing is gained."""
    gained = shuffled(event.local, event.reports, event.delta)
    return gained if isinstance(gained, Approximate) else event.local


def _whole_run(event: Banded | TreeAggregation, count: int) -> _Accumulated:
    if event.noise_multiplier == 0:
        return _walk(Gaussian(0.0), count)
    if isinstance(event, Banded):
        sensitivity, what = math.sqrt(event.max_participations), f"banded factorisation with {event.bands} bands"
    else:
        from atoll.privacy.tree_sensitivity import tree_sensitivity

        sensitivity, what = tree_sensitivity(event), "tree aggregation"
    note = (
        f"{what} over {event.rounds} rounds: a unit takes part at most {event.max_participations} times, at least "
        f"{event.min_separation} rounds apart; sensitivity {sensitivity:.4g}, no amplification"
    )
    return _Accumulated((Term(Gaussian(event.noise_multiplier / sensitivity), count),), (note,), fixed=True)


def _sampled(event: Sampled, count: int) -> _Accumulated:
    inner = event.event
    if isinstance(inner, Sampled):
        raise ConfigError("sampled.event: is sampled already. Sample once, from the sampler that ran.")
    if isinstance(inner, Banded | TreeAggregation):
        why = _not_separated(inner, event)
        if why:
            return _Accumulated(broken=(why,))
        if isinstance(inner, TreeAggregation) or inner.noise_multiplier == 0 or not _is_poisson(event):
            return _walk(inner, count)
        what = f"banded factorisation with {inner.bands} bands over {inner.rounds} rounds: "
        return _poisson_participations(
            event,
            Gaussian(inner.noise_multiplier),
            count * max_participations(inner.rounds, event.participation_gap),
            what,
        )
    if _walk(inner, 1).broken:
        return _walk(inner, count)
    if event.scheme == "everyone":
        return _walk(inner, count) + _Accumulated(notes=("everyone takes part in every round",), fixed=True)
    joint, times = _joint(inner), max_participations(count, event.participation_gap)
    if _is_poisson(event) and (joint or isinstance(inner, Laplace)):
        return _poisson_participations(event, joint or inner, times)  # type: ignore[arg-type]
    if event.scheme in ("cyclic", "cyclic_poisson"):
        scheme = event.scheme.replace("_", " ")
        note = f"{scheme} sampling: {times} turns of a unit in {count} rounds, no amplification"
        return _walk(inner, times) + _Accumulated(notes=(note,), fixed=True)
    return _random(event, inner, joint, count)


def _is_poisson(event: Sampled) -> bool:
    """Does a coin, which nobody sees, decide whether a unit is sampled in its rounds? That is Poisson subsampling."""
    return event.scheme == "poisson" or (event.scheme == "cyclic_poisson" and event.rate < 1 - 1e-9)


def _poisson_participations(event: Sampled, one: Gaussian | Laplace, times: int, what: str = "") -> _Accumulated:
    """So many participations of a unit, each decided by such a coin: a Poisson-subsampled mechanism."""
    groups = (
        f" within {event.participation_gap} groups, in {times} turns of a unit" if event.participation_gap > 1 else ""
    )
    note = f"{what}amplified by Poisson sampling at rate {event.rate:.6g}{groups}"
    return _Accumulated((Term(one, times, rate=event.rate),), (note,), fixed=event.participation_gap > 1)


def _random(event: Sampled, inner: Event, joint: Gaussian | None, count: int) -> _Accumulated:
    drawn = (int(event.cohort), event.population)
    if event.scheme == "without_replacement" and joint:
        note = f"amplified by sampling {drawn[0]} of {drawn[1]} without replacement"
        return _Accumulated((Term(joint, count, without_replacement=drawn),), (note,))
    if event.scheme == "with_replacement":
        if joint is None:
            name = type(inner).__name__
            return _Accumulated(
                broken=(f"no bound for {name} on a cohort drawn with replacement: a unit may come twice",)
            )
        note = "drawn with replacement: no amplification; a unit counts as often as it is drawn, save a part of delta"
        return _Accumulated((Term(joint, count, with_replacement=drawn),), (note,), fixed=True)
    note = f"no amplification is known for {type(inner).__name__} under this sampling: a unit counts in every round"
    return _walk(inner, count) + _Accumulated(notes=(note,), fixed=True)


def _joint(event: Event) -> Gaussian | None:
    """Gaussians on the same cohort as one: 1/z² = Σ 1/z²; None if there is anything else, or noise of a whole run."""
    if isinstance(event, Composed) and any(_joint(part) is None for part, n in event.parts if n):
        return None
    if isinstance(event, Banded | TreeAggregation):
        return None
    parts = _walk(event, 1).terms
    if not parts or not all(part == Term(part.event, part.count) for part in parts):
        return None
    if not all(isinstance(part.event, Gaussian) for part in parts):
        return None
    return Gaussian(combined(parts))


def combined(terms: tuple[Term, ...]) -> float:
    """The noise multiplier of one Gaussian that costs what these Gaussians cost together: 1/z² = Σ count / z²."""
    return 1 / math.sqrt(sum(t.count / t.event.noise_multiplier**2 for t in terms if isinstance(t.event, Gaussian)))


def _not_separated(event: Banded | TreeAggregation, sampled: Sampled) -> str | None:
    """Why the sampler does not keep what the whole-run event relies on."""
    gap = sampled.participation_gap
    name, how = "banded" if isinstance(event, Banded) else "tree", sampled.scheme.replace("_", " ")
    if sampled.scheme == "with_replacement":
        return f"{name} needs at most one turn per round, and drawing with replacement does not keep it"
    if gap < event.min_separation:
        return f"{name} needs {event.min_separation} rounds between two turns of a unit; {how} sampling keeps {gap}"
    if event.max_participations < (allowed := max_participations(event.rounds, gap)):
        return f"{name} counts {event.max_participations} turns of a unit; {how} sampling allows {allowed}"
    if isinstance(event, TreeAggregation) and event.pattern == "cyclic" and gap % event.min_separation:
        return f"{name} needs turns every {event.min_separation} rounds; {how} sampling has them every {gap}"
    return None


def _double(term: Term) -> Term:
    """The same noise where one unit moves the sum twice as far."""
    event = term.event
    if isinstance(event, Gaussian):
        return replace(term, event=Gaussian(event.noise_multiplier / 2))
    if isinstance(event, Laplace):
        return replace(term, event=Laplace(event.scale / 2))
    if isinstance(event, DistributedDiscreteGaussian):
        return replace(term, event=replace(event, noise_multiplier=event.noise_multiplier / 2, l2=event.l2 * 2))
    if isinstance(event, DistributedSkellam):
        return replace(term, event=DistributedSkellam(event.noise_multiplier / 2, event.l2 * 2, event.l1 * 2))
    return term
