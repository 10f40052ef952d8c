"""Advice for a terminal: the clients in numbers beside the nearest measured settings."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from atoll.analysis.advise.advice import Advice, Near
from atoll.analysis.advise.distance import KINDS

_AXES = [axis for axes in KINDS.values() for axis in axes]
_SHORT = {"jensen_shannon": "js", "effective_classes": "classes", "size_gini": "size gini"}


def shown(found: Advice) -> RenderableType:
    """The table, or two: print it with a rich console."""
    return Group(_skews(found), _evidence(found)) if found.near else _skews(found)


def _skews(found: Advice) -> Table:
    """How unlike the clients are, here and there."""
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, title_justify="left")
    table.title = Text(f"How unlike the clients are: {found.target.name}", style="bold")
    table.add_column("", overflow="fold", min_width=12)
    for axis in _AXES:
        table.add_column(_SHORT.get(axis, axis), justify="right", no_wrap=True)
    table.add_column("distance", justify="right")
    rows = [("asked about", found.target.skew, "")]
    rows += [(near.setting.row, near.setting.skew, f"{near.distance.total:.2f}") for near in found.near]
    for name, skew, far in rows:
        table.add_row(Text(name), *(f"{skew[axis]:.3g}" if axis in skew else "-" for axis in _AXES), far)
    return table


def _evidence(found: Advice) -> Table:
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, title_justify="left")
    table.title = Text("What did best there", style="bold")
    for heading in ("setting", "best", "second"):
        table.add_column(heading, overflow="fold")
    for heading in ("margin", "p(better)", "seeds"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("digests", overflow="fold")
    for near in found.near:
        table.add_row(*_row(near))
    return table


def _row(near: Near) -> list[Text]:
    s = near.setting
    half = "" if s.margin.half is None else f" ± {s.margin.half * s.scale:.2g}"
    scores = [f"{score.method} {score.estimate.mean * s.scale:.4g}" for score in s.scores[:2]]
    margin = f"{s.margin.mean * s.scale:+.3g}{half}"
    digests = " ".join(digest[:8] for digest in s.scores[0].digests)
    name = f"{s.name} ({s.privacy})" if s.privacy else s.name
    return [Text(x) for x in (name, *scores, margin, f"{s.p_better:.2f}", str(len(s.seeds)), digests)]
