"""A line of the record: what happened in a round."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from torch import Tensor

from atoll import tree
from atoll.core import Algorithm, Chain, Outcome, extract
from atoll.runs.evaluate import Evaluation
from atoll.tree import Tree

_MOST_NUMBERS = 1000  # of one diagnostic in a line, unless the cohort is larger


def line(
    number: int, algorithm: Algorithm, chain: Chain, before: Tree, outcome: Outcome, evaluation: Evaluation | None
) -> dict[str, Any]:
    """Of round `number`, counted from 0: losses, metrics, who took part and with which settings.

    `before` is the state that the round began with.
    """
    columns = outcome.columns()
    losses = columns.loss[columns.finite].cpu()
    weight = outcome.examples[columns.finite.cpu()]
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
    drawn = {k: v for k, v in asdict(outcome.participation).items() if v is not None}
    entry["cohort"] = {"size": len(outcome.ids), "ids": outcome.ids.tolist(), "how": drawn}
    settings = {_dotted(k): v for k, v in tree.paths(_settings(algorithm, chain))}
    settings |= {f"algorithm.{name}": before["server"][name].mean() for name in algorithm.traits().adapts}
    entry["settings"] = {k: _short(float(v)) for k, v in settings.items()}
    return entry


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
    return {k: math.nan if v is None or (isinstance(v, float) and not math.isfinite(v)) else v for k, v in kept.items()}


def named(ids: list[int]) -> str:
    """Clients in words.

    >>> named([3]), named([1, 2])
    ('client 3', '2 clients (1, 2)')
    """
    shown = ", ".join(map(str, ids[:8]))
    return f"client {shown}" if len(ids) == 1 else f"{len(ids)} clients ({shown}{', ...' if len(ids) > 8 else ''})"


def _settings(algorithm: Algorithm, chain: Chain) -> Tree:
    """The round's numbers, on the host: reading them back from a device would make it wait."""
    return {"algorithm": extract(algorithm), "chain": extract(chain)}


def _dotted(path: str) -> str:
    return path.replace("/inner", "").replace("/", ".")


def _short(x: float) -> float:
    """A float32 as people write it: 0.1, not 0.10000000149."""
    return float(f"{x:.7g}")
