"""What a partition looks like: classes by client, sizes, noise. Arrays in, figures out; never torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from atoll.errors import RecordError
from atoll.report import theme
from atoll.report.plots import Plot
from atoll.report.render_html import fact_table, template

if TYPE_CHECKING:  # matplotlib is slow to import: only what draws does
    from matplotlib.figure import Figure

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]

MOST, CELLS = 40, 1200  # clients and bubbles in one picture: a page stays small
_STEPS = 24  # sizes of bubbles: as many shapes in the file, whatever the number of bubbles
_WIDTH, _HEIGHT = 4.8, 2.8  # inches, as the other figures


def bubbles(counts: Counts, names: Sequence[str] = (), clients: Sequence[str] = ()) -> Plot:
    """Classes by clients, the area of a bubble in proportion to the rows (NIID-Bench's figure 3), from counts (N, K).

    Of more than 40 clients (12 if there are 100 classes) some are shown, evenly taken. `names`: of the classes.
    `clients`: what these are called, for an axis of all of them.
    """
    table = _table(counts)
    N, K = table.shape
    chosen = np.unique(np.linspace(0, N - 1, min(N, MOST, max(10, CELLS // K))).astype(np.int64))
    shown = "" if len(chosen) == N else f" {len(chosen)} of {N:,} clients are shown, evenly taken."
    held = (table > 0).sum(1)
    labels = list(names) if len(names) == K else [str(k) for k in range(K)]
    return Plot(
        "classes",
        "Classes by client",
        f"The area of a bubble is the number of examples; the largest has {int(table.max()):,}.{shown}",
        f"{N} clients hold between {held.min()} and {held.max()} of {K} classes, in the mean {held.mean():.1f}.",
        lambda: _draw_bubbles(table, chosen, labels, clients if len(clients) == len(chosen) == N else ()),
    )


def sizes(counts: Counts) -> Plot:
    """A histogram of the clients' sizes, from sizes (N,) or counts (N, K); logarithmic where they span two decades."""
    n = np.asarray(counts, np.int64)
    n = n.sum(1) if n.ndim == 2 else n
    if not len(n) or n.min() < 0:
        raise RecordError("pictures.sizes: needs the number of examples of each client. Give at least one.")
    summary = f"{len(n):,} clients: {n.min():,} to {n.max():,} examples, median {np.median(n):,.0f}"
    return Plot("sizes", "Sizes", f"{summary}.", f"A histogram of sizes. {summary}.", lambda: _draw_sizes(n))


def noise(images: Floats, levels: Sequence[float]) -> Plot:
    """The same examples at rising noise, from images (L, E, H, W) or (L, E, H, W, 3) and the L standard deviations."""
    if images.ndim not in (4, 5) or len(images) != len(levels):
        raise RecordError(
            f"pictures.noise: images of shape {images.shape} for {len(levels)} levels. Give (levels, examples, H, W)."
        )
    deviations = ", ".join(f"{level:.2g}" for level in levels)
    return Plot(
        "noise",
        "Inputs with noise",
        f"A column for each level of noise; standard deviation {deviations}. Values are cut to 0..1 to be shown.",
        f"{images.shape[1]} examples with noise of standard deviation {deviations}.",
        lambda: _draw_noise(images, levels),
    )


def holdings(owner: Counts, parties: int) -> Plot:
    """Which party holds which entry of a table of rows and columns, from owner (rows, columns); -1: nobody."""
    if owner.ndim != 2 or owner.min() < -1 or owner.max() >= parties:
        raise RecordError(f"pictures.holdings: needs parties 0..{parties - 1} by row and column, or -1 for nobody.")
    shared = int((owner >= 0).all(1).sum())
    summary = f"{parties} parties; {shared:,} of {len(owner):,} rows are held by all of them"
    return Plot("holdings", "Columns by party", f"{summary}.", f"{summary}.", lambda: _draw_holdings(owner, parties))


def page(title: str, plots: Sequence[Plot], facts: Sequence[tuple[str, str]] = (), lead: str = "") -> str:
    """One HTML file with these pictures and a table of facts; opens offline, follows the reader into the dark."""
    return template("pictures").render(title=title, lead=lead, facts=fact_table(facts), plots=plots)


def _table(counts: Counts) -> Counts:
    table = np.asarray(counts, np.int64)
    if table.ndim != 2 or not table.size or not table.any():
        raise RecordError(f"pictures.bubbles: counts of shape {table.shape}. Give one row for each client, (N, K).")
    return table


def _draw_bubbles(table: Counts, chosen: Counts, labels: Sequence[str], clients: Sequence[str]) -> Figure:
    from matplotlib.ticker import MaxNLocator

    K, N = table.shape[1], len(chosen)
    figure, axes = theme.canvas(_WIDTH, max(_HEIGHT, 0.3 + 0.16 * K if K <= 30 else 0.3 + 0.06 * K))
    room = 1.1 * min(72 * (_WIDTH - 0.7) / (N + 1), 72 * (figure.get_figheight() - 0.6) / (K + 1))  # points
    step = np.ceil(_STEPS * np.sqrt(table[chosen] / table.max())).astype(np.int64)  # of the diameter
    for size in np.unique(step[step > 0]):
        client, label = np.nonzero(step == size)
        wide, color = float(room * size / _STEPS), theme.SERIES[0]
        axes.plot(client, label, "o", markersize=wide, color=color, alpha=0.75, markeredgewidth=0)
    axes.set_xlim(-0.7, N - 0.3)
    axes.set_ylim(-0.7, K - 0.3)
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    every = max(1, -(-K // 20))
    axes.set_yticks(range(0, K, every), labels[::every])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
    if len(table) != N:
        at = np.linspace(0, N - 1, min(N, 9)).astype(np.int64)
        axes.set_xticks(at, [str(c) for c in chosen[at]])
    if clients:
        names = [name if len(name) <= 16 else f"{name[:15]}…" for name in clients]
        axes.set_xticks(range(N), names, rotation=90 if N > 4 else 0)
    return figure


def _draw_sizes(n: Counts) -> Figure:
    from matplotlib.ticker import MaxNLocator

    figure, axes = theme.canvas(_WIDTH, _HEIGHT)
    wide = n.min() > 0 and n.max() > 100 * n.min()
    if wide:
        theme.logarithmic(axes, "x")
        bins = np.geomspace(n.min(), n.max() + 1, 25)
    else:
        width = max(1, -(-int(n.max() - n.min() + 1) // 25))  # whole numbers, so that bars are of whole sizes
        bins = np.arange(n.min(), n.max() + width + 1, width) - 0.5
    axes.hist(n, bins=bins.tolist(), color=theme.SERIES[0], edgecolor=theme.PAPER, linewidth=0.6)
    axes.set_xlabel("examples")
    axes.set_ylabel("clients")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    if not wide:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    return figure


def _draw_noise(images: Floats, levels: Sequence[float]) -> Figure:
    """One picture of all tiles: a small file, and nothing between the pixels."""
    L, E, H, W = images.shape[:4]
    gap = max(1, H // 14)
    mosaic = np.ones((E * (H + gap) - gap, L * (W + gap) - gap, *images.shape[4:]))
    for column in range(L):
        for row in range(E):
            top, left = row * (H + gap), column * (W + gap)
            mosaic[top : top + H, left : left + W] = np.clip(images[column, row], 0, 1)
    figure, axes = theme.canvas(_WIDTH, min(6.0, 0.5 + (_WIDTH - 0.2) * mosaic.shape[0] / mosaic.shape[1]))
    axes.imshow(mosaic, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.grid(visible=False)
    axes.set_yticks([])
    axes.set_xticks([i * (W + gap) + W / 2 for i in range(L)], [f"{level:.2g}" for level in levels])
    axes.tick_params(length=0)
    axes.set_xlabel("standard deviation of the noise")
    axes.spines[:].set_visible(False)
    return figure


def _draw_holdings(owner: Counts, parties: int) -> Figure:
    """Rows of the same holders together, those of all parties on top."""
    from matplotlib.colors import ListedColormap

    order = np.lexsort([*np.flip(-owner.T, 0), -(owner >= 0).sum(1)])
    figure, axes = theme.canvas(_WIDTH, _HEIGHT)
    colours = ListedColormap(["#00000000", *(f"C{p}" for p in range(parties))])
    axes.imshow(owner[order] + 1, cmap=colours, vmin=0, vmax=parties, aspect="auto", interpolation="nearest")
    axes.grid(visible=False)
    axes.set_xlabel("column of the data")
    axes.set_ylabel("rows")
    axes.set_yticks([])
    return figure
