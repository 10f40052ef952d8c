"""The tables behind the axes: what was measured, in the metric's own unit, with intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from atoll.card import scores
from atoll.card.capability import capability, comprehensive
from atoll.card.card_measures import COSTS, BySeed, Measured
from atoll.card.profiles import baseline_costs, kept, paired
from atoll.card.score_card import ScoreCard
from atoll.report import (
    MISSING,
    MetricInfo,
    TextCell,
    TextRow,
    TextTable,
    counted,
    gains_by_client,
    number_columns,
    row,
    significant,
    table_of_harmed,
    text_columns,
)
from atoll.stats import t_interval

_UNITS = {"rounds": 1.0, "bytes": 1e-6, "seconds": 1.0}


def tables(card: ScoreCard, axis: str, dcs: bool = False) -> list[TextTable]:
    """Everything that stands behind an axis: its parts first."""
    builders: dict[str, Callable[[ScoreCard], list[TextTable]]] = {
        "effectiveness": _effectiveness,
        "robustness": _robustness,
        "efficiency": _efficiency,
        "privacy": _privacy,
        "fairness": _fairness,
    }
    more = [capability_table(card)] if dcs and axis == "robustness" else []
    found = [_parts(card, axis), *builders[axis](card), *more]
    return [table for table in found if table is not None and table.rows]


def score_table(card: ScoreCard) -> TextTable:
    """Axes by methods: the chart in numbers."""
    heads = (*text_columns("axis"), *text_columns(*card.methods, kind="score"))
    rows = [row(axis, *(_score(card, m, axis) for m in card.methods)) for axis in card.axes]
    return TextTable(heads, tuple(rows), notes=(card.profile.words,))


def _score(card: ScoreCard, method: str, axis: str) -> TextCell:
    found = card.scores[method][axis]
    if found.estimate is None:
        return TextCell("not measured", hint=found.why)
    half = found.estimate.half
    return TextCell(f"{found.estimate.mean:.2f}", "" if half is None else f"{half:.2f}", value=found.estimate.mean)


def _parts(card: ScoreCard, axis: str) -> TextTable | None:
    """What the score is the mean of."""
    first = card.scores[card.methods[0]][axis]
    rows = []
    for part in first.parts:
        cells = [_part(card, m, axis, part.name) for m in card.methods]
        alike = [p for m in card.methods for p in card.scores[m][axis].parts if p.name == part.name]
        titles = dict.fromkeys(p.title for p in alike if p.unit) or {part.title: None}
        rows.append(row(" or ".join(titles), *cells, "yes" if part.name in first.counted else "no"))
    heads = (*text_columns("part"), *text_columns(*card.methods, kind="score"), *text_columns("in the score"))
    return TextTable(heads, tuple(rows), "How it is scored") if rows else None


def _part(card: ScoreCard, method: str, axis: str, name: str) -> TextCell:
    part = next(p for p in card.scores[method][axis].parts if p.name == name)
    if not part.measured:
        return TextCell("not measured", hint=part.why)
    found = t_interval(list(part.by_seed.values()))
    return TextCell(f"{found.mean:.2f}", "" if found.half is None else f"{found.half:.2f}", value=found.mean)


def _effectiveness(card: ScoreCard) -> list[TextTable]:
    metric = card.metric
    heads = (
        *text_columns("method"),
        *number_columns("alone", "federated", "pooled", group=f"{metric.unit}, on clients' unseen examples"),
        *number_columns("over alone", "below pooled", group="paired by seed"),
    )
    rows = []
    for m in card.measured:
        values = [m.on_clients(name) for name in ("local", "own", "central")]
        gain, gap = (paired(lambda a, b: a - b, values[i], values[j]) for i, j in ((1, 0), (2, 1)))
        rows.append(
            row(m.method, *(_cell(v, metric) for v in values), _cell(gain, metric, "+"), _cell(gap, metric, "+"))
        )
    notes = ("Means over clients weighted by their examples (FedEval's definitions 1 to 3).",)
    return [TextTable(heads, tuple(rows), "Against training alone and pooled data", notes)]


def _robustness(card: ScoreCard) -> list[TextTable]:
    titles = {name: title for m in card.measured for name, title in m.titles.items()}
    heads = [*text_columns("condition")]
    for m in card.measured:
        heads += [*number_columns(card.metric.unit, "kept", "success (%)", group=m.method)]
    conditions = [name for name in titles if name not in ("local", "central", "fedsgd")]
    rows = [
        row(titles[name], *(c for m in card.measured for c in _condition(m, name, card.metric))) for name in conditions
    ]
    notes = (
        f"{card.metric.title} on the test data. Kept: what is left of it above chance, of IID data's for "
        "conditions of the data, else of the method as its file has it; 1.00 is all. Success: the share of test "
        "examples that get the class which an attack wants; what is above that of the model without it counts against "
        "the method.",
    )
    return [TextTable(tuple(heads), tuple(rows), "Under stress", notes, style="wide")]


def _condition(m: Measured, name: str, metric: MetricInfo) -> tuple[TextCell, TextCell, TextCell]:
    values = m.quality(name)
    if not values:
        return TextCell("not measured", hint=m.missing.get(name, "")), TextCell(MISSING), TextCell(MISSING)
    calm = "iid" if name in ("own", "labels", "features", "iid") else "own"
    share = kept(m, name, calm)
    return _cell(values, metric), _plain(share, "{:.2f}"), _plain(m.success(name), "{:.1f}", 100.0)


def _efficiency(card: ScoreCard) -> list[TextTable]:
    heads = (*text_columns("method"), *number_columns("rounds", "MB, up and down", "virtual seconds"))
    rows = [row(m.method, *(_cost(m.costs("own", c), m.spent("own", c), c) for c in COSTS)) for m in card.measured]
    first = card.measured[0]
    rows.append(row("FedSGD (baseline)", *(_baseline(first, c) for c in COSTS)))
    reached = (
        f"{card.metric.title} {first.target * card.metric.scale:.4g}" if math.isfinite(first.target) else "nothing"
    )
    notes = (
        f"Until {reached} on the test data: nine tenths of the way from chance to pooled data, unless --target says "
        "otherwise. FedSGD has four times the rounds; where it never gets there, it costs at least what it spent.",
    )
    return [TextTable(heads, tuple(rows), "To the target", notes)]


def _cost(costs: BySeed, spent: BySeed, cost: str) -> TextCell:
    if not costs:
        return TextCell("not measured")
    never = sum(not math.isfinite(v) for v in costs.values())
    if never:
        least = _plain({s: min(v, spent[s]) for s, v in costs.items() if s in spent}, None, _UNITS[cost])
        return TextCell(f"> {least.text}", remarks=(f"{never} of {len(costs)} seeds never",))
    return _plain(costs, None, _UNITS[cost])


def _baseline(m: Measured, cost: str) -> TextCell:
    costs = m.costs("fedsgd", cost)
    found = _cost(costs, m.spent("fedsgd", cost), cost)
    assert not costs or baseline_costs(m, cost)
    return found


def _privacy(card: ScoreCard) -> list[TextTable]:
    heads = (
        *text_columns("method"),
        *number_columns("security level"),
        *text_columns("because", "guarantee"),
        *number_columns("membership AUC", "epsilon at least"),
        *text_columns("reconstruction"),
    )
    rows = []
    for m in card.measured:
        level, audits = m.level, list(m.membership.values())
        auc = {seed: float(a["auc"]) for seed, a in m.membership.items()}
        bound = {seed: float(a["epsilon_lower"]) for seed, a in m.membership.items()}
        said = "; ".join(claim.said for claim in m.claims) or "none"
        alarm = " Contradicted by the audit!" if any(a.get("exceeds") for a in audits) else ""
        rows.append(
            row(
                m.method,
                MISSING if level is None else level.level,
                MISSING if level is None else level.reason,
                said + alarm,
                _plain(auc, "{:.3f}") if auc else TextCell("not measured", hint=m.missing.get("membership", "")),
                _plain(bound, "{:.2f}") if bound else MISSING,
                _leak(m),
            )
        )
    notes = (
        "Membership: a threshold on the loss of the run's own model (Yeom et al., 2018); AUC 0.5 is guessing. Epsilon "
        "at least: what the attack proves, with 95 % confidence. Levels are FedEval's, 0 to 3.",
    )
    return [TextTable(heads, tuple(rows), "What others learn", notes, style="wide")]


def _leak(m: Measured) -> str:
    if not m.leakage:
        return f"not measured: {m.missing.get('leakage', '')}"
    found = t_interval([float(one["identification"]) for one in m.leakage.values()])
    return f"{found.mean:.0%} identified"


def _fairness(card: ScoreCard) -> list[TextTable]:
    metric = card.metric
    heads = (
        *text_columns("method"),
        *number_columns("mean", "worst tenth", group=f"{metric.unit} of clients"),
        *number_columns("Gini", "harmed"),
    )
    rows = []
    for m in card.measured:
        harmed = {seed: 1.0 - scores.unharmed(list(one.values())) for seed, one in m.gains().items()}
        numbers = (_cell(m.spread("mean"), metric), _cell(m.spread("worst_decile"), metric))
        gini = m.spread("gini")
        rows.append(row(m.method, *numbers, _plain(gini, "{:.3f}"), _plain(harmed, "{:.0%}", spread="{:.0%}")))
    gains = [(m.method, gains_by_client(list(m.own.values()), _alone(m), metric)) for m in card.measured]
    who = table_of_harmed([(name, one) for name, one in gains if one], metric)
    spread = TextTable(heads, tuple(rows), "Over clients", ("Harmed: the share of clients that do better alone.",))
    return [spread, *([who] if who else [])]


def _alone(m: Measured) -> list:  # type: ignore[type-arg]
    return list(m.records.get("local", {}).values())


def capability_table(card: ScoreCard) -> TextTable | None:
    """VFLAIR's score of every attack that was measured, and its mean over types; of metrics that are shares."""
    heads = (*text_columns("method", "attack"), *number_columns("DCS"))
    if not card.metric.share:
        why = f"The score adds squares of shares, and {card.metric.title} is no share."
        nothing = tuple(row(m, "all, mean over types", TextCell("not measured", hint=why)) for m in card.methods)
        return TextTable(heads, nothing, "Capability", (why,))
    rows: list[TextRow] = []
    by_type: dict[str, list[list[float]]] = {m.method: [[], []] for m in card.measured}
    everywhere = all(m.membership for m in card.measured)
    for m, alike in zip(card.measured, card.alike, strict=True):
        for name in m.attacks:
            values = capabilities(m, name)
            by_type[m.method][0] += capabilities(alike, name).values()
            rows.append(row(m.method, m.titles.get(name, name), _plain(values, "{:.3f}")))
        values = _membership_capability(m)
        if values:
            by_type[m.method][1] += _membership_capability(alike).values() if everywhere else ()
            rows.append(row(m.method, "membership", _plain(values, "{:.3f}")))
    rows += [row(name, "all, mean over types", f"{comprehensive(found):.3f}") for name, found in by_type.items()]
    notes = (
        "VFLAIR's defence capability score with beta 1/2. An attack that wants a class reaches its success, and what "
        "the model without it gives is ideal; any other reaches what the metric loses, and 0 is ideal; membership "
        "reaches its AUC, and 0.5 is ideal; the main task's ideal is the method without attack. The mean is over "
        "attacks that every method has.",
    )
    return TextTable(heads, tuple(rows), "Capability", notes)


def _membership_capability(m: Measured) -> BySeed:
    auc = {seed: float(a["auc"]) for seed, a in m.membership.items()}
    return paired(lambda a, q: capability(a, 0.5, q, q), auc, m.quality("own"))


def capabilities(m: Measured, attack: str) -> BySeed:
    """Of one attack by seed: it reaches its success, beside what a clean model gives it, or what the metric loses."""
    success, clean = m.success(attack), m.clean.get(attack, {})
    under, calm = m.quality(attack), m.quality("own")
    found: BySeed = {}
    for seed in (seed for seed in under if seed in calm):
        reached = under[seed] if math.isfinite(under[seed]) else float(not m.higher)  # it diverged
        lost = max(0.0, calm[seed] - reached if m.higher else reached - calm[seed])
        got, ideal = (success[seed], clean.get(seed, 0.0)) if seed in success else (lost, 0.0)
        found[seed] = capability(max(got, ideal), ideal, reached, calm[seed])
    return found


def _cell(values: BySeed, metric: MetricInfo, sign: str = "") -> TextCell:
    """Mean and half width over seeds, in the metric's unit."""
    if not values:
        return TextCell("not measured")
    found = t_interval(list(values.values()))
    if found.diverged:
        lost = sum(not math.isfinite(v) for v in values.values())
        return TextCell("diverged", remarks=(f"{lost} of {counted(len(values), 'seed')}",) if len(values) > 1 else ())
    form: Callable[[float], str] = (
        (lambda x: f"{x * metric.scale:{sign}.1f}")
        if metric.percent
        else (lambda x: significant(x * metric.scale, sign))
    )
    half = "" if found.half is None else form(found.half).lstrip("+")
    return TextCell(form(found.mean).replace("-", "−"), half, value=found.mean * metric.scale)


def _plain(values: BySeed, form: str | None, unit: float = 1.0, spread: str | None = None) -> TextCell:
    if not values:
        return TextCell(MISSING)
    found = t_interval([v * unit for v in values.values()])
    text = significant(found.mean) if form is None else form.format(found.mean)
    if found.half is None:
        return TextCell(text, value=found.mean)
    half = significant(found.half) if form is None else (spread or form).format(found.half)
    return TextCell(text, half, value=found.mean)


def as_rows(table: TextTable) -> list[dict[str, object]]:
    """A table for a JSON file: a dict for each row, numbers where they are known."""
    titles = [f"{c.group} {c.title}".strip() if c.group else c.title for c in table.columns]
    return [
        {t: c.value if c.value is not None else c.inline for t, c in zip(titles, one.filled, strict=True)}
        for one in table.rows
    ]


def all_tables(card: ScoreCard, dcs: bool) -> Sequence[tuple[str, list[TextTable]]]:
    """By axis."""
    return [(axis, tables(card, axis, dcs)) for axis in scores.AXES if card.scores[card.methods[0]][axis].parts]
