"""Colours and type of the figures, and how a figure becomes SVG that follows the page into the dark."""

from __future__ import annotations

import io
import re
import warnings
from html import escape
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # matplotlib is slow to import: only what draws does
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours for all kinds of colour vision, the light ones darkened to stand on white.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#b85c93", "#a87b00", "#5b6470", "#3a9bd1")
DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (1.5, 1.5)), (0, (7, 2, 1.5, 2)), (0, (4, 1.5, 1.5, 1.5, 1.5, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
PHASES = ("#8fa3bf", "#2f6aa3", "#cf8a4e", "#74b49b", "#b7a6c9", "#c2b280", "#7d7d86")
INK, RULE, PAPER = "#1c2430", "#d9dee5", "#fdfefe"

# In a page every colour is a variable, so that light and dark each have their own.
VARIABLES = {
    INK: "ink",
    RULE: "rule",
    PAPER: "paper",
    **{color: f"series-{i}" for i, color in enumerate(SERIES)},
    **{color: f"phase-{i}" for i, color in enumerate(PHASES)},
}

RC: Any = {
    "font.size": 9.5,
    "axes.labelsize": 9.5,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "text.parse_math": False,  # a label may hold a $
    "svg.fonttype": "none",
    "svg.hashsalt": "atoll",
    "pdf.fonttype": 42,
    "savefig.dpi": 200,
}


def load_matplotlib() -> None:
    """Import what draws, for a process in which nobody asks matplotlib for help.

    It writes what every artist can be told into docstrings, which takes a third of its import.
    """
    from matplotlib import artist

    described = artist.kwdoc
    artist.kwdoc = lambda artist: ""
    try:
        import matplotlib.backends.backend_svg
        import matplotlib.figure  # noqa: F401
    finally:
        artist.kwdoc = described


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure with one pair of axes, as small as its labels allow."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.patch.set_alpha(0.0)
    return figure, axes


def line_style(number: int) -> dict[str, Any]:
    """Colour, dashes and marker of the n-th curve: never colour alone."""
    return {
        "color": SERIES[number % len(SERIES)],
        "linestyle": DASHES[number % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
    }


def logarithmic(axes: Axes, which: Literal["x", "y"]) -> None:
    """A logarithmic axis with plain numbers: matplotlib writes powers as mathematics, which is switched off here."""
    from matplotlib.ticker import FuncFormatter, LogFormatter

    getattr(axes, f"set_{which}scale")("log")
    axis = getattr(axes, f"{which}axis")
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(LogFormatter())


def svg(figure: Figure, name: str, alt: str) -> str:
    """The figure as inline SVG: transparent, text as text, colours as variables, ids of its own, nothing to load."""
    drawn = _rendered(figure, "svg").decode("utf-8")
    body = drawn[drawn.index("<svg") :]
    body = (
        re.sub(r'\s(xmlns(:\w+)?|version|width|height)="[^"]*"', "", body[: body.index(">")]) + body[body.index(">") :]
    )
    body = re.sub(r"<(metadata|style)\b.*?</\1>", "", body, flags=re.DOTALL)  # that style would reach the whole page
    body = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), body)  # a hundredth of a point
    for start in ('id="', "url(#", 'href="#'):
        body = body.replace(start, f"{start}{name}-")
    for color, variable in VARIABLES.items():
        body = body.replace(color, f"var(--{variable})")
    return body.replace("<svg", f'<svg role="img" aria-label="{escape(alt)}"', 1)


def _lay_out(figure: Figure) -> None:
    """Place everything as saving would, which draws the figure once more for it."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    FigureCanvasSVG(figure)
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)


def picture(figure: Figure, kind: Literal["png", "pdf"]) -> bytes:
    """The figure as a file for a paper, on white."""
    return _rendered(figure, kind, facecolor="white", transparent=False)


def _rendered(figure: Figure, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    dated = {"CreationDate": None} if kind == "pdf" else {}  # the same records give the same file
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a label in another script
        if kind == "svg":
            _lay_out(figure)
        figure.savefig(buffer, format=kind, metadata=dated, **{"transparent": True, **options})
    return buffer.getvalue()
