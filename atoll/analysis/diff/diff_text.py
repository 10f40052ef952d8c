"""What is known of two runs beside each other, in plain English, the most telling first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from atoll.analysis.diff.find_difference import Parting
from atoll.analysis.diff.first_difference import First
from atoll.analysis.diff.replay import Replay
from atoll.report import show

_FEW = 4


def words(found: Parting) -> list[str]:
    """A line for each thing that is known."""
    return [*_verdict(found), *_asked(found), *_paired(found), *_machines(found)]


def _verdict(found: Parting) -> Iterator[str]:
    lines, replay = found.lines, found.replay
    if lines.same:
        yield f"The same: all {lines.rounds[0]} rounds, every model bit for bit, every key of the record but seconds."
        return
    if lines.model is None and lines.first is None:
        short = min(lines.rounds)
        yield f"The same as far as both go: {short} rounds. A has {lines.rounds[0]} rounds, B has {lines.rounds[1]}."
        return
    if lines.first is not None and (lines.model is None or lines.first.round < lines.model):
        yield from _only_records(found)
    if lines.model is not None:
        yield f"The models part in round {lines.model}{_before(lines.model)}."
        yield from _in_line(found)
        yield from _replayed(found, replay) if replay else [f"No client is named: {found.unknown.rstrip('.')}."]


def _only_records(found: Parting) -> Iterator[str]:
    lines, first, replay = found.lines, found.lines.first, found.replay
    assert first is not None
    models = "all models are the same" if lines.model is None else f"the models are the same until round {lines.model}"
    values = f"{first.key} is {_said(first.a)} in A, {_said(first.b)} in B"
    yield f"The records part in round {first.round}, where {models}: {values}."
    if len(lines.keys) > 1:
        yield f"Other keys that differ in that round: {_few(lines.keys[1:])}."
    if replay is not None and replay.round == first.round:
        for name, line, said in (("A", replay.lines[0], first.a), ("B", replay.lines[1], first.b)):
            value = _at(line, first.key)
            agrees = "as its record says" if value == said else "which is not what its record says"
            yield f"Run again, {name} has {_said(value)} there, {agrees}."


def _in_line(found: Parting) -> Iterator[str]:
    """What the records say of the round where the models part."""
    first, model = found.lines.first, found.lines.model
    if first is None or first.round != model:
        yield "The record of that round is otherwise the same."
        return
    asked = [key for key in found.lines.keys if key.startswith(("settings.", "cohort."))]
    if asked:
        yield f"In that round the records differ in what was asked: {_few(asked)}."


def _replayed(found: Parting, replay: Replay) -> Iterator[str]:
    for name, began in zip("AB", replay.began, strict=True):
        if began:
            yield f"{name} was run again from its checkpoint after round {began}."
    if replay.parted and replay.first is not None:
        if replay.round != found.lines.model:
            yield f"Run again here, they part in round {replay.round} already."
        yield from _first(replay.first)
    else:
        yield (
            f"Run again here, both end round {replay.round} with the same bits: "
            "the difference cannot be reproduced on this machine."
        )
    for name, astray in zip("AB", replay.agrees, strict=True):
        says = "is what its record says" if astray is None else f"is not what its record says from round {astray} on"
        yield f"Run again, {name} {says}."
    yield from (f"Note: {note}." for note in replay.notes)


def _first(first: First) -> Iterator[str]:
    yield from (f"What went in differs: {reason}." for reason in first.reasons[:_FEW])
    more = len(first.reasons) - _FEW
    if more > 0:
        yield f"... and {more} more inputs."
    if first.client is not None:
        yield f"First client: {first.client}. {first.clients} of {first.of} clients send back something else."
    elif first.tensors:
        yield "Every client that both have sends back the same bits; the server makes another model of them."
    yield from (f"First tensor: {gap}." for gap in first.tensors[:1])
    largest = max(first.tensors[1:], key=lambda gap: gap.relative if gap.relative is not None else 2.0, default=None)
    if largest is not None:
        yield f"{len(first.tensors)} tensors differ; the most of the others {largest}."
    if first.noise:
        yield "Float noise: the same sums, taken in another order."


def _asked(found: Parting) -> Iterator[str]:
    if found.settings:
        shown = [f"{key} ({show(a)} / {show(b)})" for key, (a, b) in found.settings.items()]
        yield f"Settings that differ (A / B): {', '.join(shown)}."
    else:
        yield "The experiments are the same."


def _paired(found: Parting) -> Iterator[str]:
    facts = {"partition": found.partition, "initial model": found.initial, "cohorts": found.lines.cohorts}
    said = [f"{name} {_same(value)}" for name, value in facts.items()]
    verdict = {True: "Paired", False: "Not paired", None: "Perhaps paired"}[found.paired]
    yield f"{verdict}: {', '.join(said)}."


def _machines(found: Parting) -> Iterator[str]:
    replay = found.replay
    odd = replay is not None and (not replay.parted or replay.agrees != (None, None))
    if not found.parted or not found.machines or not (odd or found.lines.model is not None):
        return
    for key, (a, b, here) in found.machines.items():
        yield f"{key}: {show(a)} (A), {show(b)} (B)" + ("" if key.startswith("engine") else f", {show(here)} (here)")


def _before(model: int) -> str:
    return ", the first" if model == 1 else f"; they are the same up to round {model - 1}"


def _same(value: bool | None) -> str:
    return {True: "the same", False: "another", None: "not known"}[value]


def _said(value: Any) -> str:
    text = "missing" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _few(keys: Any) -> str:
    more = len(keys) - _FEW
    return ", ".join(keys[:_FEW]) + (f" and {more} more" if more > 0 else "")


def _at(line: Any, key: str) -> Any:
    for part in key.split("."):
        line = line.get(part) if isinstance(line, dict) else None
    return line
