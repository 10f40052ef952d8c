"""Texts under the pointer: SVG's own titles on upright stripes of a figure, so that a page needs no script."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from atoll.records import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 40  # stripes of a figure: more would be narrow, and make a page heavy
_ID, _BETWEEN = "hover", "\x1f"
_ALONE = 20.0  # the width of a single stripe


def spread(x: Floats) -> Floats:
    """Which of these places have a text: evenly spread, with the first and the last.

    >>> spread(np.array([3.0, 1.0, 3.0])).tolist(), len(spread(np.arange(1000.0)))
    ([1.0, 3.0], 40)
    """
    places: Floats = np.unique(x)
    spaced: Floats = places[np.linspace(0, len(places) - 1, min(len(places), MOST)).round().astype(int)]
    return spaced


def add(axes: Axes, x: Floats, titles: Sequence[str]) -> None:
    """A text for each of these places that can be seen, once limits and scales are set.

    A point that is not drawn marks each end of a stripe, and their label keeps the texts until there is an SVG.
    """
    low, high = sorted(axes.get_xlim())
    seen = (x >= low) & (x <= high)
    ends = np.repeat([0.0, 1.0], np.count_nonzero(seen))
    label = _BETWEEN.join(title for title, visible in zip(titles, seen, strict=True) if visible)
    upright = axes.get_xaxis_transform()
    axes.plot(np.tile(x[seen], 2), ends, linestyle="", marker=",", alpha=0.0, transform=upright, label=label, gid=_ID)


def titled(svg: str, figure: Figure, name: str) -> str:
    """The figure's SVG, whose ids begin with the name, with the texts put in."""
    for ends in figure.findobj(lambda artist: artist.get_gid() == _ID):
        titles = str(ends.get_label()).split(_BETWEEN)
        before, drawn, after = re.split(rf'(<g id="{name}-{_ID}">.*?</g>\s*</g>)', svg, maxsplit=1, flags=re.DOTALL)
        svg = f"{before}{_stripes(drawn, titles)}{after}"
    return svg


def _stripes(drawn: str, titles: Sequence[str]) -> str:
    """Each place with what is nearer to it than to others, from the lower end of the axes to the upper."""
    at = [(float(x), float(y)) for x, y in re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)"', drawn)]
    x = [place for place, _ in at[: len(titles)]]
    bottom, top = at[0][1], at[-1][1]
    middles = [(a + b) / 2 for a, b in pairwise(x)]
    edges = [x[0] - _ALONE / 2, x[0] + _ALONE / 2] if len(x) == 1 else [x[0], *middles, x[-1]]
    stripes = (
        f'<rect x="{a:.1f}" y="{top:.1f}" width="{b - a:.1f}" height="{bottom - top:.1f}">'
        f"<title>{escape(title)}</title></rect>"
        for (a, b), title in zip(pairwise(edges), titles, strict=True)
    )
    return f'<g class="hover" fill-opacity="0">{"".join(stripes)}</g>'
