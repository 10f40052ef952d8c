"""From what was measured to scores: Atoll's own rules (0 to 1), and FedEval's (0 to 5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from atoll.card import fedeval_rules as fedeval
from atoll.card import scores
from atoll.card.card_measures import COSTS, BySeed, Measured


@dataclass(frozen=True)
class ScorePart:
    """One part of an axis by seed; `why` it is not measured, where it is not."""

    name: str
    title: str
    by_seed: BySeed = field(default_factory=dict)
    why: str = ""
    unit: str = ""  # whom it is about: parts of different units are not ranked against each other

    @property
    def measured(self) -> bool:
        return bool(self.by_seed)


Rule = Callable[[Measured], list[ScorePart]]


@dataclass(frozen=True)
class ScoreProfile:
    """A set of rules: what scores go up to, and the parts of every axis it knows."""

    name: str
    scale: float
    rules: Mapping[str, Rule]
    words: str


def paired(rule: Callable[..., float], *values: BySeed) -> BySeed:
    """The rule at every seed that all have."""
    common = [seed for seed in values[0] if all(seed in other for other in values)]
    return {seed: rule(*(one[seed] for one in values)) for seed in common}


# Atoll's rules.


def _effectiveness(m: Measured) -> list[ScorePart]:
    rule = partial(scores.effectiveness, higher=m.higher)
    found = paired(rule, m.on_clients("own"), m.on_clients("local"), m.on_clients("central"))
    return [ScorePart("way", "way from alone to pooled", found, _why(m, "own", "local", "central"))]


def kept(m: Measured, stressed: str, calm: str) -> BySeed:
    """What is left of the quality under a condition."""
    rule = partial(scores.retention, higher=m.higher)
    return paired(rule, m.quality(stressed), m.quality(calm), m.chance())


def withstood(m: Measured, attack: str) -> BySeed:
    """What an attack leaves: of the quality, and of what it wants if that is a class."""
    planted = m.planted(attack)
    return {seed: scores.resisted(share, planted.get(seed, 0.0)) for seed, share in kept(m, attack, "own").items()}


def _robustness(m: Measured) -> list[ScorePart]:
    data = {name: kept(m, name, "iid") for name in ("own", "labels", "features")}
    faults = {name: kept(m, name, "own") for name in ("stragglers", "dropouts", "together", "by_data")}
    attacks = [withstood(m, name) for name in m.attacks]
    common = [seed for seed in (attacks[0] if attacks else ()) if all(seed in one for one in attacks)]
    worst = {seed: min(one[seed] for one in attacks) for seed in common}
    return [
        ScorePart("data", "non-IID data", _mean_of(data), _why(m, "iid", *data)),
        ScorePart("faults", "faults", _mean_of(faults), _why(m, *faults)),
        ScorePart("attacks", "worst attack", worst, m.missing.get("attacks", "none was asked for")),
    ]


def _mean_of(parts: Mapping[str, BySeed]) -> BySeed:
    """Over those that were measured."""
    return scores.by_seed_mean([part for part in parts.values() if part])


def _efficiency(m: Measured) -> list[ScorePart]:
    why = _why(m, "own", "fedsgd") or "there is no target without test data"
    return [ScorePart(cost, COSTS[cost], _cheap(m, cost), why) for cost in COSTS]


def _cheap(m: Measured, cost: str) -> BySeed:
    return paired(scores.cheapness, m.costs("own", cost), baseline_costs(m, cost))


def baseline_costs(m: Measured, cost: str) -> BySeed:
    """FedSGD's, or all that it spent where it never got there: at least so much."""
    spent = m.spent("fedsgd", cost)
    return {seed: min(value, spent[seed]) for seed, value in m.costs("fedsgd", cost).items() if seed in spent}


def _privacy(m: Measured) -> list[ScorePart]:
    level, claim = m.level, m.guarantee
    seeds = list(m.own)
    membership = {seed: scores.unseen(float(a["auc"])) for seed, a in m.membership.items()}
    broken = any(a.get("exceeds") for a in m.membership.values())
    guaranteed = scores.hidden(claim.epsilon, claim.delta) if claim is not None and not broken else 0.0
    unit = "" if claim is None else claim.unit
    of = f" of {'an' if unit[0] in 'aeiou' else 'a'} {unit}" if unit else ""
    leaked = {seed: 1.0 - float(one["identification"]) for seed, one in m.leakage.items()}
    return [
        ScorePart("level", "security level", dict.fromkeys(seeds, scores.security(level.level)) if level else {}),
        ScorePart("guarantee", f"guarantee (epsilon{of})", dict.fromkeys(seeds, guaranteed), unit=unit),
        ScorePart("membership", "membership attack", membership, m.missing.get("membership", "")),
        ScorePart("leakage", "reconstruction attack", leaked, m.missing.get("leakage", "")),
    ]


def _fairness(m: Measured) -> list[ScorePart]:
    rule = partial(scores.worst_to_mean, higher=m.higher)
    gains = {seed: scores.unharmed(list(one.values())) for seed, one in m.gains().items()}
    return [
        ScorePart("worst", "worst tenth", paired(rule, m.spread("worst_decile"), m.spread("mean"))),
        ScorePart("even", "evenness", paired(scores.evenness, m.spread("gini"))),
        ScorePart("unharmed", "clients not harmed", gains, _why(m, "own", "local")),
    ]


# FedEval's.


def _fedeval_effectiveness(m: Measured) -> list[ScorePart]:
    """On the common test data, as its Table 3: a client with one class is then no match for anybody."""
    values = (m.quality("own"), m.quality("local"), m.quality("central"))
    why = "" if m.metric.share else f"FedEval's steps are percentage points, and {m.metric.title} is no share"
    found = paired(fedeval.fedeval_effectiveness, *values) if not why else {}
    return [ScorePart("steps", "steps below pooled data", found, why or _why(m, "own", "local", "central"))]


def _fedeval_robustness(m: Measured) -> list[ScorePart]:
    why = "" if m.metric.share else f"FedEval's steps are percentage points, and {m.metric.title} is no share"
    own, even = m.quality("own"), m.quality("iid")
    late, lost = (paired(lambda a, b: a - b, own, m.quality(name)) for name in ("stragglers", "dropouts"))
    seeds = [] if why else [seed for seed in own if seed in even]
    found = {s: fedeval.fedeval_robustness(own[s], even[s], late.get(s), lost.get(s)) for s in seeds}
    return [ScorePart("steps", "steps below IID data, faults handled", found, why or _why(m, "own", "iid"))]


def _fedeval_efficiency(m: Measured, published: bool) -> list[ScorePart]:
    why = _why(m, "own", "fedsgd") or "there is no target without test data"
    parts = []
    for cost, best in fedeval.BEST.items():
        rule = partial(fedeval.fedeval_cost, best=best, published=published)
        found = paired(rule, m.costs("own", cost), baseline_costs(m, cost))
        parts.append(ScorePart(cost, COSTS[cost], found, why))
    return parts


def _fedeval_privacy(m: Measured) -> list[ScorePart]:
    return [ScorePart("kind", "what is exchanged", dict.fromkeys(m.own, fedeval.fedeval_privacy(exchanged(m))))]


def exchanged(m: Measured) -> fedeval.Exchange:
    """FedEval's kind of exchange."""
    record = next(iter(m.own.values()))
    protocol = str((record.run.get("secure") or {}).get("protocol", ""))
    if record.algorithm == "centralised":
        return "raw"
    if protocol:
        return "encrypted" if protocol in ("paillier", "ckks") else "secure"
    compressed = any(entry["name"] in fedeval.COMPRESSORS for entry in record.experiment.get("transform", ()))
    if m.guarantee is not None or compressed:
        return "hidden"
    return "single" if record.algorithm == "fedsgd" else "multiple"


def _why(m: Measured, *conditions: str) -> str:
    """Why one of these was not measured."""
    return next((m.missing[name] for name in conditions if name in m.missing), "")


_FEDEVAL = {
    "effectiveness": _fedeval_effectiveness,
    "robustness": _fedeval_robustness,
    "privacy": _fedeval_privacy,
}
PROFILES = {
    "atoll": ScoreProfile(
        "atoll",
        1.0,
        dict(
            zip(scores.AXES, (_effectiveness, _robustness, _efficiency, _privacy, _fairness), strict=True),
        ),
        "Atoll's rules: every score is a share, 1 is best; an axis is the mean of its parts.",
    ),
    "fedeval": ScoreProfile(
        "fedeval",
        5.0,
        {**_FEDEVAL, "efficiency": partial(_fedeval_efficiency, published=False)},
        "FedEval's rules, 0 to 5, its rule for costs above the baseline put right. It has no axis for fairness.",
    ),
    "fedeval-published": ScoreProfile(
        "fedeval-published",
        5.0,
        {**_FEDEVAL, "efficiency": partial(_fedeval_efficiency, published=True)},
        "FedEval's rules as published: who costs more than the baseline scores above it. No axis for fairness.",
    ),
}
