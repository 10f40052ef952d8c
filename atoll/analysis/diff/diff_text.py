"""What is known of two runs beside each other, in plain English, the most telling first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from atoll.analysis.diff.find_difference import Parting
from atoll.report import show

if TYPE_CHECKING:  # torch is not needed to write two records down
    from atoll.analysis.diff.first_difference import First
    from atoll.analysis.diff.replay import Replay

_FEW = 4


def words(parting: Parting) -> list[str]:
    """A line for each thing that is known."""
    return [*_verdict(parting), *_asked(parting), *_paired(parting), *_machines(parting)]


def _verdict(parting: Parting) -> Iterator[str]:
    lines, replay = parting.lines, parting.replay
    if lines.same:
        yield f"The same: all {lines.rounds[0]} rounds, every model bit for bit, every key of the record but seconds."
        return
    if lines.model is None and lines.first is None:
        short = min(lines.rounds)
        yield f"The same as far as both go: {short} rounds. A has {lines.rounds[0]} rounds, B has {lines.rounds[1]}."
        return
    if lines.first is not None and (lines.model is None or lines.first.round < lines.model):
        yield from _only_records(parting)
    if lines.model is not None:
        yield f"The models part in round {lines.model}{_before(lines.model)}."
        yield from _in_line(parting)
        yield from _replayed(parting, replay) if replay else [f"No client is named: {parting.unknown.rstrip('.')}."]


def _only_records(parting: Parting) -> Iterator[str]:
    lines, first, replay = parting.lines, parting.lines.first, parting.replay
    assert first is not None
    models = "all models are the same" if lines.model is None else f"the models are the same until round {lines.model}"
    values = f"{first.key} is {_value_text(first.a)} in A, {_value_text(first.b)} in B"
    yield f"The records part in round {first.round}, where {models}: {values}."
    if len(lines.keys) > 1:
        yield f"Other keys that differ in that round: {_few(lines.keys[1:])}."
    if replay is not None and replay.round == first.round:
        for name, line, recorded in (("A", replay.lines[0], first.a), ("B", replay.lines[1], first.b)):
            value = _at(line, first.key)
            agrees = "as its record says" if value == recorded else "which is not what its record says"
            yield f"Run again, {name} has {_value_text(value)} there, {agrees}."


def _in_line(parting: Parting) -> Iterator[str]:
    """What the records say of the round where the models part."""
    first, model = parting.lines.first, parting.lines.model
    if first is None or first.round != model:
        yield "The record of that round is otherwise the same."
        return
    asked = [key for key in parting.lines.keys if key.startswith(("settings.", "cohort."))]
    if asked:
        yield f"In that round the records differ in what was asked: {_few(asked)}."


def _replayed(parting: Parting, replay: Replay) -> Iterator[str]:
    for name, began in zip("AB", replay.began, strict=True):
        if began:
            yield f"{name} was run again from its checkpoint after round {began}."
    if replay.parted and replay.first is not None:
        if replay.round != parting.lines.model:
            yield f"Run again here, they part in round {replay.round} already."
        yield from _first(replay.first)
    else:
        why = "the difference cannot be reproduced on this machine"
        why = "both on the data of today" if parting.other_data else why
        yield f"Run again here, both end round {replay.round} with the same bits: {why}."
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


def _asked(parting: Parting) -> Iterator[str]:
    if parting.settings:
        shown = [f"{key} ({show(a)} / {show(b)})" for key, (a, b) in parting.settings.items()]
        yield f"Settings that differ (A / B): {', '.join(shown)}."
    elif not parting.other_data and not parting.inputs:
        yield "The experiments are the same."
    if parting.other_data:
        a, b = (digest[:8] for digest in parting.data)
        asked = "" if parting.settings else "The experiments are the same but for the data: "
        yield f"{asked}{'the' if asked else 'The'} data differ (digest {a}... / {b}...)."
    for name, (a, b) in parting.inputs.items():
        asked = "" if parting.settings else "The experiments are the same but for a file or what is drawn: "
        yield f"{asked}{'what' if asked else 'What'} {name} names differs (digest {a[:8]}... / {b[:8]}...)."


def _paired(parting: Parting) -> Iterator[str]:
    facts: dict[str, bool | None] = {}
    if all(parting.data):
        facts["data"] = parting.data[0] == parting.data[1]
    facts |= {"partition": parting.partition, "initial model": parting.initial, "cohorts": parting.lines.cohorts}
    facts |= dict.fromkeys(parting.inputs, False)
    verdicts = [f"{name} {_same(value)}" for name, value in facts.items()]
    verdict = {True: "Paired", False: "Not paired", None: "Perhaps paired"}[parting.paired]
    yield f"{verdict}: {', '.join(verdicts)}."


def _machines(parting: Parting) -> Iterator[str]:
    replay = parting.replay
    odd = replay is not None and (not replay.parted or replay.agrees != (None, None))
    if not parting.parted or not parting.machines or not (odd or parting.lines.model is not None):
        return
    for key, (a, b, *here) in parting.machines.items():
        again = f", {show(here[0])} (here)" if here and not key.startswith("engine") else ""
        yield f"{key}: {show(a)} (A), {show(b)} (B){again}"


def _before(model: int) -> str:
    return ", the first" if model == 1 else f"; they are the same up to round {model - 1}"


def _same(value: bool | None) -> str:
    return {True: "the same", False: "another", None: "not known"}[value]


def _value_text(value: Any) -> str:
    text = "missing" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _few(keys: Any) -> str:
    more = len(keys) - _FEW
    return ", ".join(keys[:_FEW]) + (f" and {more} more" if more > 0 else "")


def _at(line: Any, key: str) -> Any:
    for part in key.split("."):
        line = line.get(part) if isinstance(line, dict) else None
    return line
