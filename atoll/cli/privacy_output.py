"""How `atoll privacy` prints numbers: never better than they are."""

from __future__ import annotations

import math
from pathlib import Path

from atoll.cli.common import say

Curve = list[tuple[int, float]]  # rounds, and the epsilon after them


def shown(epsilon: float) -> str:
    """Rounded up: a printed epsilon is never below the accounted one."""
    if not math.isfinite(epsilon):
        return "none: there is no guarantee at this delta"
    return f"{math.ceil(epsilon * 1e4 - 1e-9) / 1e4:.4f}"


def counted(rounds: int) -> str:
    """A number of rounds."""
    return "1 round" if rounds == 1 else f"{rounds} rounds"


def rounded_up(noise_multiplier: float) -> float:
    """The next number of six digits: less noise would not keep the budget."""
    step = 10.0 ** (math.floor(math.log10(noise_multiplier)) - 5)
    return float(f"{math.ceil(noise_multiplier / step) * step:.6g}")


def warn(delta: float, population: int) -> None:
    """Say so where delta is too large to mean anything."""
    if delta > 1 / population:
        text = f"delta {delta:g} is above 1 / population ({1 / population:g}): "
        text += "a mechanism may publish one unit as it is and still keep it. Use a smaller one."
        say(f"Warning: {text}", "yellow", wrap=True)


def write(out: Path, curve: Curve, facts: list[tuple[str, str]]) -> None:
    """Epsilon over rounds, as numbers or as a picture."""
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".csv":
        head = [f"# {name}: {value}" for name, value in facts]
        out.write_text("\n".join([*head, "round,epsilon", *(f"{r},{spent!r}" for r, spent in curve)]) + "\n", "utf-8")
    else:
        out.write_text(_drawn(curve), encoding="utf-8")
    say(f"Curve: {out}")


def _drawn(curve: Curve) -> str:
    from atoll.report import epsilon_by_round

    return epsilon_by_round(curve, f"Epsilon {shown(curve[-1][1])} after {counted(curve[-1][0])}.").svg()
