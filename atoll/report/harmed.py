"""Who is harmed by federation: clients that do worse in it than with their own data only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atoll.records import Record
from atoll.report import prose
from atoll.report.gains import client_gains
from atoll.report.metrics import MetricInfo
from atoll.report.seed_groups import Group
from atoll.report.text_table import TextCell, TextRow, TextTable, number_columns, row, text_columns
from atoll.stats import Estimate, t_interval

NAMED = 5  # clients in a sentence
_NOTE = (
    "Each client's value minus its value alone, on the same split and seed. Where all seeds have one split, the mean "
    "with its 95 % interval over seeds: clearly harmed is who stays below 0 with all of it. Where every seed draws its "
    "own split, a client is one of a seed and has no interval: among few unseen examples some fall below 0 by chance."
)


@dataclass(frozen=True)
class ClientGain:
    """A client's gain over training alone: positive is better, whatever the metric."""

    name: str
    gain: Estimate

    @property
    def harmed(self) -> bool:
        return self.gain.mean < 0

    @property
    def clearly(self) -> bool:
        """With its whole interval."""
        return self.gain.high is not None and self.gain.high < 0

    def said(self, metric: MetricInfo) -> str:
        """Its name and what it loses, such as: St. Mary (−3.1 ± 0.8)."""
        half = "" if self.gain.half is None else f" ± {_number(self.gain.half, metric)}"
        return f"{self.name} ({_number(self.gain.mean, metric, '+')}{half})"


def gains_by_client(
    records: Sequence[Record], alone: Sequence[Record], metric: MetricInfo, when: str = "before"
) -> list[ClientGain]:
    """Every client's gain, the worst first; clients of one split over its seeds, of several splits each for itself."""
    by_split: dict[str, list[tuple[Record, Mapping[int | str, float]]]] = {}
    for record in records:
        if gains := client_gains(record, alone, metric, when):
            by_split.setdefault(record.split, []).append((record, gains))
    found = [one for members in by_split.values() for one in _of_one_split(members, len(by_split) > 1)]
    return sorted(found, key=lambda one: one.gain.mean)


def _of_one_split(members: Sequence[tuple[Record, Mapping[int | str, float]]], several: bool) -> list[ClientGain]:
    first, names = members[0][0], members[0][0].client_names
    ids = dict.fromkeys(i for _, gains in members for i in gains)
    suffix = f", seed {first.seed}" if several else ""
    return [
        ClientGain(
            f"{names.get(i, f'client {i}')}{suffix}", t_interval([gains[i] for _, gains in members if i in gains])
        )
        for i in ids
    ]


def harmed_sentence(gains: Sequence[ClientGain], metric: MetricInfo) -> str:
    """The worst few by name, and how many there are.

    >>> from atoll.report.metrics import ACCURACY
    >>> mary = ClientGain("St. Mary", t_interval([-0.028, -0.031, -0.034]))
    >>> harmed_sentence([mary, ClientGain("City", t_interval([0.1, 0.2]))], ACCURACY)
    'harmed: St. Mary (−3.1 ± 0.7), 1 of 2 clients'
    """
    harmed = [one for one in gains if one.harmed]
    if not harmed:
        return f"harmed: nobody of {prose.counted(len(gains), 'client')}"
    more = " and others" if len(harmed) > NAMED else ""
    named = ", ".join(one.said(metric) for one in harmed[:NAMED])
    return f"harmed: {named}{more}, {len(harmed):,} of {prose.counted(len(gains), 'client')}"


def harmed_table(groups: Sequence[Group], metric: MetricInfo) -> TextTable | None:
    """A row for every method; None where nothing trains alone to compare with."""
    alone = [record for other in groups if other.alone for record in other.records]
    known = [(one.name, gains_by_client(one.records, alone, metric)) for one in groups if not one.alone]
    return table_of_harmed([(name, gains) for name, gains in known if gains], metric)


def table_of_harmed(known: Sequence[tuple[str, Sequence[ClientGain]]], metric: MetricInfo) -> TextTable | None:
    """The same of gains that are known."""
    if not known:
        return None
    heads = (*text_columns("run"), *number_columns("clients", "harmed", "clearly"), *text_columns("who"))
    rows = tuple(_row(name, gains, metric) for name, gains in known)
    return TextTable(heads, rows, "Who is harmed by the federation", (_NOTE,), style="wide")


def _row(name: str, gains: Sequence[ClientGain], metric: MetricInfo) -> TextRow:
    harmed = [one for one in gains if one.harmed]
    clearly = sum(one.clearly for one in gains) if any(one.gain.half is not None for one in gains) else prose.MISSING
    who = harmed_sentence(gains, metric).removeprefix("harmed: ").rpartition(", ")[0] if harmed else "nobody"
    return row(name, len(gains), TextCell(str(len(harmed)), value=len(harmed)), clearly, who)


def _number(value: float, metric: MetricInfo, sign: str = "") -> str:
    shown = value * metric.scale
    return (f"{shown:{sign}.1f}" if metric.percent else prose.significant(shown, sign)).replace("-", "−")
