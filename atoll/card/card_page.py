"""The files of a card: one HTML page that opens offline, its chart as PNG and PDF, and everything as JSON."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll import __version__
from atoll.card.card_tables import all_tables, as_rows, score_table
from atoll.card.radar import LINK, radar
from atoll.card.score_card import ScoreCard
from atoll.experiment import Experiment
from atoll.records import Record, as_json, clean, replace_bytes, replace_text
from atoll.report import TextTable, counted, fact_table, listed, template

PAGE, PICTURE, PAPER, VALUES = "card.html", "card.png", "card.pdf", "card.json"
BESIDE = 3  # methods whose scores have room beside the chart
FORMULAS = {
    "effectiveness": "(F − L) / (C − L), cut to 0 and 1: F the method, L every client alone, C pooled data, at the "
    "same seed, on clients' unseen examples.",
    "robustness": "The mean of: what is kept above chance under non-IID data, of IID data's; under faults, of the "
    "method's own; and under the worst attack, or 1 − its success above that without it if that is less.",
    "efficiency": "The mean over rounds, bytes and virtual seconds to the target of 1 / (1 + cost / FedSGD's cost).",
    "privacy": "The mean of: security level / 3; 2 (1 − delta) / (e^epsilon + 1) of a guarantee that holds, 0 without "
    "one; 1 − (2 AUC − 1) of a membership attack; 1 − the share of inputs that reconstruction identifies.",
    "fairness": "The mean of: the worst tenth over the mean client; 1 − Gini; the share of clients not harmed.",
}


@dataclass(frozen=True)
class AxisSection:
    """What opens when an axis is clicked."""

    name: str
    said: str
    formula: str
    tables: list[TextTable]
    missing: list[str]


def write(card: ScoreCard, folder: Path, dcs: bool = False) -> dict[str, Path]:
    """Write all files into the folder; by their kind."""
    folder.mkdir(parents=True, exist_ok=True)
    places = {name: folder / name for name in (PAGE, PICTURE, PAPER, VALUES)}
    chart = radar(card)
    replace_text(places[VALUES], as_json(values(card, dcs), indent=1))
    replace_text(places[PAGE], page(card, dcs))
    replace_bytes(places[PICTURE], _fewer_colours(chart.picture("png")))
    replace_bytes(places[PAPER], chart.picture("pdf"))
    return places


def _fewer_colours(png: bytes) -> bytes:
    """The same picture in a third of the bytes: a chart has few colours."""
    from PIL import Image

    small = io.BytesIO()
    with Image.open(io.BytesIO(png)) as picture:
        picture.convert("RGB").quantize(64).save(small, "png", optimize=True)
    return small.getvalue()


def page(card: ScoreCard, dcs: bool = False) -> str:
    """The whole page as text."""
    chart = radar(card)
    first = _records(card)[0]
    made = [("versions", first.run.get("versions") or {}), ("machine", first.run.get("hardware") or {})]
    return template("card").render(
        title=card.title,
        scope=_scope(card),
        lead=lead(card),
        left_out=list(card.left_out),
        picture=chart.svg().replace(f'href="#{chart.name}-{LINK}', f'href="#{LINK}'),
        caption=chart.caption,
        width=26 if len(card.methods) == 1 else 44,
        beside=len(card.methods) <= BESIDE,
        scores=score_table(card),
        axes=[_section(card, axis, tables) for axis, tables in all_tables(card, dcs)],
        notes=list(card.notes),
        facts=[(name, fact_table((str(k), str(v)) for k, v in table.items())) for name, table in made],
        configs=[(m.method, _config(next(iter(m.own.values())))) for m in card.measured if m.own],
        runs=len(_records(card)),
        version=__version__,
    )


def lead(card: ScoreCard) -> list[str]:
    """What a manager reads: of every method its best and its worst axis; what several have in common once."""
    weakest: dict[tuple[str, str], dict[str, tuple[str, str]]] = {}
    for method in card.methods:
        known = {axis: e.mean for axis in card.axes if (e := card.scores[method][axis].estimate)}
        if len(known) > 1:
            best, worst = max(known, key=known.__getitem__), min(known, key=known.__getitem__)
            strongest = best, f"{known[best]:.2f}"
            weakest.setdefault((worst, f"{known[worst]:.2f}"), {})[method] = strongest
    return [_sentence(worst, value, methods, card.profile.scale) for (worst, value), methods in weakest.items()]


def _sentence(worst: str, value: str, methods: dict[str, tuple[str, str]], scale: float) -> str:
    """Of methods with the same weakest axis: their strongest ones."""
    groups: dict[tuple[str, str], list[str]] = {}
    for method, strongest in methods.items():
        groups.setdefault(strongest, []).append(method)
    names, several = listed(methods), len(methods) > 1
    if all(number == value for _, number in groups):
        return f"{names} {'have' if several else 'has'} {value} on every axis, of {scale:g}."
    if not several:
        best, number = next(iter(groups))
        return f"{names} is strongest in {best} ({number}) and weakest in {worst} ({value}), of {scale:g}."
    said = ", ".join(f"{listed(group)} in {best} ({number})" for (best, number), group in groups.items())
    return f"{names} are weakest in {worst} ({value}), of {scale:g}; strongest: {said}."


def values(card: ScoreCard, dcs: bool = False) -> dict[str, Any]:
    """Everything, for programs."""
    scores = {
        method: {
            axis: _axis_values(card, method, axis) for axis in card.scores[method] if card.scores[method][axis].parts
        }
        for method in card.methods
    }
    tables = {axis: {t.title: as_rows(t) for t in found} for axis, found in all_tables(card, dcs)}
    whole: dict[str, Any] = clean(
        {
            "title": card.title,
            "profile": card.profile.name,
            "scale": card.profile.scale,
            "metric": card.metric.key,
            "seeds": list(card.seeds),
            "command": card.command,
            "scores": scores,
            "tables": tables,
            "notes": list(card.notes),
            "left_out": list(card.left_out),
            "atoll": __version__,
        }
    )
    return whole


def _axis_values(card: ScoreCard, method: str, axis: str) -> dict[str, Any]:
    found = card.scores[method][axis]
    e = found.estimate
    interval = None if e is None or e.low is None else [e.low, e.high]
    parts = {
        p.name: {"by_seed": p.by_seed, "counted": p.name in found.counted, **({"why": p.why} if not p.measured else {})}
        for p in found.parts
    }
    return {"score": None if e is None else e.mean, "interval": interval, "by_seed": found.by_seed, "parts": parts}


def _section(card: ScoreCard, axis: str, tables: list[TextTable]) -> AxisSection:
    said = [f"{m} {e.mean:.2f}" for m in card.methods if (e := card.scores[m][axis].estimate)]
    missing = [f"{m}: {why}." for m in card.methods if (why := card.scores[m][axis].why)]
    formula = FORMULAS[axis] if card.profile.name == "atoll" else card.profile.words
    return AxisSection(axis, listed(said) or "not measured", formula, tables, missing)


def _records(card: ScoreCard) -> Sequence[Record]:
    """Every run once."""
    by_folder = {r.folder: r for m in card.measured for one in m.records.values() for r in one.values()}
    return list(by_folder.values())


def _scope(card: ScoreCard) -> str:
    seeds = "1 seed, no intervals" if len(card.seeds) == 1 else f"seeds {', '.join(map(str, card.seeds))}"
    rounds = sorted({int(r.experiment["rounds"]) for m in card.measured for r in m.own.values()})
    many = f"{rounds[0]} rounds" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]} rounds"
    counts = [counted(len(card.methods), "method"), counted(len(_records(card)), "run"), many]
    return " · ".join([*counts, seeds, f"profile {card.profile.name}"])


def _config(record: Record) -> str:
    return Experiment.parse(record.experiment).to_toml()
