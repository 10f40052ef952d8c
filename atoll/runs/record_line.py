"""A line of the record: what happened in a round."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from atoll import tree
from atoll.core import Outcome
from atoll.runs.evaluate import Evaluation
from atoll.tree import Tree

_WITH_IDS = frozenset(["clock", "secure"])  # parts of a line that list clients
_MOST_NUMBERS = 1000  # of one diagnostic in a line, unless the cohort is larger


def line(number: int, settings: Mapping[str, float], outcome: Outcome, evaluation: Evaluation | None) -> dict[str, Any]:
    """Of round `number`, counted from 0: losses, metrics, who took part and with which settings."""
    columns = outcome.columns()
    finite = columns.finite.cpu()
    losses, weight = columns.loss.cpu(), outcome.examples
    if not bool(finite.all()):
        losses, weight = losses[finite], weight[finite]
    entry: dict[str, Any] = {"round": number + 1}
    if len(losses) and bool(weight.any()):
        entry["train_loss"] = float((losses * weight).sum() / weight.sum())
    if len(losses) and not outcome.changed:
        entry["unchanged"] = "nobody who could be used has examples: the model stays as it is"
    if evaluation is not None:
        entry |= evaluation.central
        entry["clients"] = evaluation.clients
        if evaluation.after is not None:
            entry["after"] = evaluation.after
        entry |= evaluation.beside
        if evaluation.attack is not None:
            entry["attack"] = evaluation.attack
    drawn = {k: v for k, v in vars(outcome.participation).items() if v is not None}
    entry["cohort"] = {"size": len(outcome.ids), "ids": outcome.ids.tolist(), "how": drawn}
    entry["settings"] = dict(settings)
    return entry


def written_settings(settings: Tree) -> dict[str, float]:
    """A round's numbers as its line has them; of tensors on the host, since asking a device would make it wait."""
    return {path.replace("/inner", "").replace("/", "."): short(float(x)) for path, x in tree.paths(settings)}


def short(x: float) -> float:
    """A float32 as people write it: 0.1, not 0.10000000149."""
    return float(f"{x:.7g}")


def diagnostics(outcome: Outcome, told: Collection[str]) -> dict[str, Any]:
    """What reducer and transforms say of the round, as lists and numbers, but for what is `told` elsewhere in the line.

    A line grows with its cohort and with nothing else: of a tensor that is larger there is only the shape.
    """
    most = max(_MOST_NUMBERS, len(outcome.ids))
    untold = {name: value for name, value in outcome.diagnostics.items() if name not in told}
    return tree.map(lambda x: _plain(x, most), untold)  # type: ignore[no-any-return]


def _plain(x: Tensor, most: int) -> Any:
    return x.tolist() if x.numel() <= most else {"shape": list(x.shape)}


def as_read(entry: dict[str, Any]) -> dict[str, Any]:
    """A line as schedules and stopping see it: NaN for what is not finite, whether it was just measured or is null.

    Without the ids of the cohort and without diagnostics, which the record has: all rounds are held, and must not take
    what cohorts take.
    """
    cohort = {k: v for k, v in entry["cohort"].items() if k != "ids"}
    kept = {k: v for k, v in entry.items() if k != "diagnostics"} | {"cohort": cohort}
    for key in _WITH_IDS & entry.keys():
        kept[key] = {k: v for k, v in entry[key].items() if not isinstance(v, list)}
    return {k: math.nan if v is None or (isinstance(v, float) and not math.isfinite(v)) else v for k, v in kept.items()}


def named(ids: list[int]) -> str:
    """Clients in words.

    >>> named([3]), named([1, 2])
    ('client 3', '2 clients (1, 2)')
    """
    shown = ", ".join(map(str, ids[:8]))
    return f"client {shown}" if len(ids) == 1 else f"{len(ids)} clients ({shown}{', ...' if len(ids) > 8 else ''})"
