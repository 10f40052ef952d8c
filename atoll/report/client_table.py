"""Client by client: who they are, what they reach, and who gains over training alone."""

from collections.abc import Mapping, Sequence

import numpy as np

from atoll.records import Record
from atoll.report import prose
from atoll.report.gains import client_gains
from atoll.report.metrics import MetricInfo
from atoll.report.seed_groups import Group
from atoll.report.text_table import TextCell, TextColumn, TextTable, row

MOST = 500  # rows on a page; clients.json has them all
Values = Mapping[int | str, float]


def client_table(groups: Sequence[Group], metric: MetricInfo) -> TextTable | None:
    """A row for each client of the first split: its name, its examples, and for each group what it reaches.

    Where several seeds have that split (natural clients have one), their mean; other splits have other clients.
    """
    first = next(
        (r for one in groups for r in one.records if r.clients and r.clients.measured(metric.key, "before")), None
    )
    if first is None or first.clients is None or len(first.clients.ids) > MOST:
        return None
    columns = [column for one in groups for column in _columns(one, groups, first.split, metric)]
    names, sizes = first.client_names, dict(zip(first.clients.ids, first.clients.examples, strict=False))
    heads = (TextColumn("client"), *([TextColumn("examples", "number")] if sizes else []), *(c for c, _, _ in columns))
    rows = tuple(
        row(
            names.get(i, str(i)),
            *([TextCell(f"{sizes[i]:,}", value=sizes[i])] if sizes else []),
            *(_cell(values.get(i), metric, signed) for _, values, signed in columns),
            hint=f"client {i}" if i in names else "",
        )
        for i in first.clients.ids
    )
    notes = (f"{prose.first_up(metric.heading())}; on each client's {first.clients.on}.",)
    return TextTable(heads, rows, notes=notes, style="wide sortable")


def _columns(
    group: Group, groups: Sequence[Group], split: str, metric: MetricInfo
) -> list[tuple[TextColumn, Values, bool]]:
    """What a group's clients reach, after local training too, and their gain: those of the three that are known."""
    records = [record for record in group.records if record.split == split and record.clients]
    alone = [record for other in groups if other.alone for record in other.records]
    gains: list[Values] = [] if group.alone else [client_gains(r, alone, metric, "before") or {} for r in records]
    before, after = ([_measured(r, metric, when) for r in records] for when in ("before", "after"))
    named: list[tuple[str, str, list[Values], bool]] = [
        (group.name, "as the model stands", before, False),
        (f"{group.name}, tuned", "after local training", after, False),
        (f"{group.name}, gain", "over training alone; above 0 the federation helps", gains, True),
    ]
    means = [(TextColumn(title, "number", hint), _mean(values), signed) for title, hint, values, signed in named]
    return [column for column in means if column[1]]


def _measured(record: Record, metric: MetricInfo, when: str) -> Values:
    return record.clients.measured(metric.key, when) if record.clients else {}


def _mean(by_seed: Sequence[Values]) -> Values:
    """By client, over the seeds that measured it."""
    ids = dict.fromkeys(i for values in by_seed for i in values)
    return {i: float(np.mean([values[i] for values in by_seed if i in values])) for i in ids}


def _cell(value: float | None, metric: MetricInfo, signed: bool) -> TextCell:
    if value is None:
        return TextCell(prose.MISSING)
    shown, sign = value * metric.scale, "+" if signed else ""
    text = f"{shown:{sign}.1f}" if metric.percent else prose.significant(shown, sign)
    return TextCell(text.replace("-", "−"), value=shown)
