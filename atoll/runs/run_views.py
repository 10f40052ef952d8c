"""A run as a frame, a figure and a piece of a notebook."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from atoll.errors import ConfigError
from atoll.experiment import did_you_mean
from atoll.runs.progress import metric_in

if TYPE_CHECKING:
    from matplotlib.figure import Figure

History = Sequence[Mapping[str, Any]]


def flat(entry: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """A line of the record with one column for each number: {"seconds": {"train": 1}} is {"seconds.train": 1}.

    >>> flat({"round": 1, "clients": {"loss": {"mean": 0.5}}, "cohort": {"ids": [3]}})
    {'round': 1, 'clients.loss.mean': 0.5}
    """
    columns: dict[str, Any] = {}
    for key, value in entry.items():
        if isinstance(value, Mapping):
            columns |= flat(value, f"{above}{key}.")
        elif not isinstance(value, list):
            columns[f"{above}{key}"] = value
    return columns


def frame(history: History) -> Any:
    """All lines as a pandas frame, by round."""
    try:
        import pandas as pd
    except ModuleNotFoundError as e:
        raise ConfigError("Run.frame: needs pandas, which is not installed. Without it: run.history.") from e
    return pd.DataFrame([flat(entry) for entry in history]).set_index("round")


def figure(history: History, metrics: Sequence[str], title: str) -> Figure:
    """Numbers of the record by round, each in a panel of its own."""
    from matplotlib.figure import Figure

    class RunFigure(Figure):
        """Shown by a notebook that has not imported pyplot."""

        def _repr_png_(self) -> bytes:
            picture = io.BytesIO()
            self.savefig(picture, format="png", dpi=72)
            return picture.getvalue()

    lines = [flat(entry) for entry in history]
    drawn = RunFigure(figsize=(4.8 * len(metrics), 3.0), layout="constrained")
    for name, axes in zip(metrics, drawn.subplots(1, len(metrics), squeeze=False)[0], strict=True):
        points = [(line["round"], line[name]) for line in lines if line.get(name) is not None]
        axes.plot(*zip(*points, strict=True), marker="." if len(points) < 30 else "")
        axes.set(xlabel="round", ylabel=name.replace("_", " "), title=title)
        axes.grid(alpha=0.3)
    return drawn


def chosen(history: History, metrics: Sequence[str], leading: str | None = None) -> list[str]:
    """What to draw: what is named, if it was recorded; else the first metric and the training loss."""
    recorded = list(dict.fromkeys(key for e in history for key, v in flat(e).items() if isinstance(v, float)))
    usual = [metric_in(entry, leading) for entry in history[-1:]]
    names = list(metrics) or [name for name in dict.fromkeys([*usual, "train_loss"]) if name in recorded]
    wrong = [name for name in names if name not in recorded]
    if wrong:
        guess = did_you_mean(wrong[0], recorded)
        raise ConfigError(f"plot: {wrong[0]!r} is not recorded.{guess} There are: {', '.join(recorded)}.")
    if not names:
        raise ConfigError("plot: no round was recorded.")
    return names


def as_html(label: str, status: str, final: Mapping[str, Any], folder: str) -> str:
    """A caption and a table of what was reached."""
    numbers = {k: v for k, v in flat(final).items() if isinstance(v, float)}
    rows = "".join(f"<tr><td>{html.escape(k)}</td><td>{v:.4g}</td></tr>" for k, v in numbers.items())
    head = f"{html.escape(label)}: {html.escape(status)} after round {final['round']}"
    return f"<p><b>{head}</b><br><code>{html.escape(folder)}</code></p><table>{rows}</table>"
