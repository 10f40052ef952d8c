"""Advice for a terminal: the clients in numbers beside the nearest measured settings."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType

from atoll.analysis.advise.advice import Advice, Near
from atoll.analysis.advise.distance import KINDS
from atoll.report import TextCell, TextRow, TextTable, number_columns, rich_table, row, text_columns

_AXES = [axis for axes in KINDS.values() for axis in axes]
_SHORT = {"jensen_shannon": "js", "effective_classes": "classes", "size_gini": "size gini"}


def shown(advice: Advice) -> RenderableType:
    """The table, or two: print it with a rich console."""
    tables = [_skews(advice), _evidence(advice)] if advice.near else [_skews(advice)]
    return Group(*map(rich_table, tables))


def _skews(advice: Advice) -> TextTable:
    """How unlike the clients are, here and there."""
    heads = (*text_columns(""), *number_columns(*(_SHORT.get(axis, axis) for axis in _AXES), "distance"))
    near = (_skew(one.setting.row, one.setting.skew, f"{one.distance.total:.2f}") for one in advice.near)
    rows = (_skew("asked about", advice.target.skew, ""), *near)
    return TextTable(heads, rows, f"How unlike the clients are: {advice.target.name}")


def _skew(name: str, skew: Mapping[str, float], far: str) -> TextRow:
    return row(name, *(f"{skew[axis]:.3g}" if axis in skew else "-" for axis in _AXES), far)


def _evidence(advice: Advice) -> TextTable:
    heads = (
        *text_columns("setting", "best", "second"),
        *number_columns("margin", "p(better)", "seeds"),
        *text_columns("digests"),
    )
    return TextTable(heads, tuple(map(_row, advice.near)), "What did best there")


def _row(near: Near) -> TextRow:
    s = near.setting
    scores = [f"{score.method} {score.estimate.mean * s.scale:.4g}" for score in s.scores[:2]]
    half = "" if s.margin.half is None else f"{s.margin.half * s.scale:.2g}"
    margin = TextCell(f"{s.margin.mean * s.scale:+.3g}", half)
    digests = " ".join(digest[:8] for digest in s.scores[0].digests)
    name = f"{s.name} ({s.privacy})" if s.privacy else s.name
    return row(name, *scores, margin, f"{s.p_better:.2f}", str(len(s.seeds)), digests)
