"""What growth is: a fixed cost and a power of the size, fitted; memory by round as a slope; and the picture of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.optimize import nnls

EXPONENTS = np.linspace(0.3, 2.0, 171)
FLAT = 0.25  # where no more of the largest size's cost than this grows, nothing does
BLUE, GREY, RED = "#0072b2", "#9aa3ad", "#d55e00"
UNITS = {
    "cohort": "clients of a round",
    "steps": "local steps of a client",
    "parameters": "parameters",
    "population": "clients in all",
    "rounds": "rounds",
}


def fit(sizes: Sequence[float], costs: Sequence[float]) -> dict[str, float]:
    """cost = fixed + each * size^exponent, with the least relative error; `off` is that of the point farthest from it.

    `last` is the slope of the last ten times in a log-log picture, with the fixed cost in it.
    """
    x, y = np.asarray(sizes, float), np.asarray(costs, float)
    solved = [(*_relative(x**p, y), p) for p in EXPONENTS]
    (fixed, each), _, exponent = min(solved, key=lambda found: found[1])
    if each * x.max() ** exponent < FLAT * y.max():
        fixed, each, exponent = float(1 / np.mean(1 / y)), 0.0, 0.0
    off = np.abs((fixed + each * x**exponent) / y - 1).max()
    late = x >= 0.099 * x.max()
    last = np.polyfit(np.log(x[late]), np.log(y[late]), 1)[0]
    return {"fixed": fixed, "each": each, "exponent": exponent, "off": float(off), "last": float(last)}


def _relative(powers: np.ndarray, costs: np.ndarray) -> tuple[tuple[float, float], float]:
    scale = powers.max()  # so that both columns are of one size
    columns = np.stack([np.ones_like(powers), powers / scale], axis=1) / costs[:, None]
    (fixed, each), residual = nnls(columns, np.ones_like(costs))
    return (float(fixed), float(each / scale)), float(residual)


def bytes_per_round(rounds: Sequence[float], resident: Sequence[float]) -> float:
    """The slope of resident memory over the second half of the rounds: buffers have been made by then.

    The median of all slopes between two moments (Theil-Sen), which one page more or less does not move.
    """
    x, y = np.asarray(rounds, float), np.asarray(resident, float)
    half = x >= x[len(x) // 2]
    x, y = x[half], y[half]
    first, second = np.triu_indices(len(x), 1)
    return float(np.median((y[second] - y[first]) / (x[second] - x[first])))


def words(axis: str, found: Mapping[str, float]) -> str:
    grows = f" + {1e6 * found['each']:.3g} us x size^{found['exponent']:.2f}" if found["each"] else ", flat"
    return (
        f"{axis}: {1e3 * found['fixed']:.3g} ms{grows}, no point off by more than {found['off']:.0%}; "
        f"slope of the last ten times {found['last']:.2f}"
    )


def draw(results: Mapping[str, Any], path: Path) -> None:
    """One panel for each axis that was measured: processor seconds with the fit, wall seconds beside them."""
    axes_measured = [name for name in UNITS if name in results]
    panels = [*axes_measured, *(["memory"] if "rounds" in results else [])]
    rows = -(-len(panels) // 3)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "growth", "font.size": 8}):
        figure = Figure(figsize=(9, 2.9 * rows), layout="constrained")
        for axes, name in zip(figure.subplots(rows, 3, squeeze=False).flat, [*panels, "", ""], strict=False):
            if not name:
                axes.axis("off")
            elif name == "memory":
                _memory(axes, results["rounds"])
            else:
                _panel(axes, name, results[name])
        figure.savefig(path, metadata={"Date": None})


def _panel(axes: Axes, name: str, found: Mapping[str, Any]) -> None:
    sizes, fitted = np.asarray(found["sizes"], float), found["fit"]
    smooth = np.geomspace(sizes.min(), sizes.max(), 60)
    line = fitted["fixed"] + fitted["each"] * smooth ** fitted["exponent"]
    axes.loglog(sizes, found["wall_s"], "x", color=GREY, markersize=4, label="wall")
    axes.loglog(smooth, line, "-", color=BLUE, linewidth=1, label="fit")
    axes.loglog(sizes, found["processor_s"], "o", color=BLUE, markersize=3.5, label="processor")
    if "setup_s" in found:
        axes.loglog(sizes, found["setup_s"], "s-", color=RED, markersize=3, linewidth=0.7, label="set-up")
    axes.set(xlabel=UNITS[name], ylabel="seconds in all" if name == "rounds" else "seconds of a round")
    axes.minorticks_off()
    growth = f"exponent {fitted['exponent']:.2f}" if fitted["each"] else "flat"
    axes.set_title(f"{name}: {growth}", fontsize=8)
    axes.legend(frameon=False, fontsize=7)


def _memory(axes: Axes, found: Mapping[str, Any]) -> None:
    at, resident = np.asarray(found["at"]), np.asarray(found["resident_mb"])
    axes.plot(at, resident, color=BLUE, linewidth=1)
    axes.set(xlabel="rounds", ylabel="resident MB", ylim=(0, 1.3 * resident.max()))
    axes.set_title(f"memory: {found['bytes_per_round']:.0f} bytes a round", fontsize=8)
