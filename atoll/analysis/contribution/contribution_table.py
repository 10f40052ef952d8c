"""Contributions as a table: the largest first, with error bars, and what it cost to find out."""

from __future__ import annotations

import numpy as np

from atoll.analysis.contribution.contribution import Contribution
from atoll.report import TextCell, TextTable, counted, known_metric, number_columns, row, significant, text_columns


def contribution_table(found: Contribution) -> TextTable:
    """A row for every client."""
    metric, halves, values = known_metric(found.metric), found.halves, found.values
    scale = metric.scale
    whole = values.sum()
    rows = []
    for i in np.argsort(-values, kind="stable"):
        half = "" if halves is None or not np.isfinite(halves[i]) else significant(halves[i] * scale)
        value = TextCell(significant(values[i] * scale, "+").replace("-", "−"), half, value=float(values[i] * scale))
        share = f"{values[i] / whole:.1%}".replace("-", "−") if whole > 0 else "—"
        rows.append(row(found.names[i], f"{found.sizes[i]:,}", value, share))
    heads = (*text_columns("client"), *number_columns("examples", f"contribution to {metric.unit}", "of all"))
    return TextTable(heads, tuple(rows), "What every client contributes", tuple(_notes(found, scale)))


def _notes(found: Contribution, scale: float) -> list[str]:
    total, gained = found.values.sum() * scale, found.gained * scale
    cost = f"{counted(found.trainings, 'training')}, {counted(found.evaluations, 'evaluation')}, {found.seconds:.1f} s"
    if len(found.by_seed) > 1:
        bars = f"95 % intervals over {len(found.by_seed)} seeds"
    elif found.halves is None:
        bars = "no error bars: one seed, and nothing was sampled (--seeds 3)"
    else:
        bars = "95 % intervals of sampling, for one seed"
    return [
        f"{found.said[:1].upper()}{found.said[1:]}.",
        f"All clients together: {significant(total)}; training gained {significant(gained)}.",
        f"It took {cost}; {bars}.",
        *(f"{note}." for note in found.notes),
    ]
