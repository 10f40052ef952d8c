"""Certified accuracy against the size of a backdoor, of runs that were certified (`atoll certify`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from atoll.records import read_certificate
from atoll.report import theme
from atoll.report.plots import Plot
from atoll.report.seed_groups import Group
from atoll.report.text_table import TextTable, number_columns, row, text_columns

if TYPE_CHECKING:  # matplotlib is slow to import: only what draws does
    from matplotlib.figure import Figure

MEANING = (
    "Certified accuracy: the share of test examples to which the vote of noisy models gives their class, and whose "
    "class no backdoor of that size or less changes (CRFL, Corollary 1), for attackers as strong as server.crfl says, "
    "each example but for a probability of alpha. The mean over seeds."
)
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the largest radius


class CertifiedGroup(NamedTuple):
    """The curves of a group's runs."""

    name: str
    certificates: Sequence[Mapping[str, Any]]

    def at(self, radius: float) -> float:
        """The mean of what its runs have at this radius, each by the last point before it."""
        values = []
        for one in self.certificates:
            radii, shares = np.array(one["curve"], dtype=np.float64).T
            beyond = np.searchsorted(radii, radius * (1 - 1e-12))
            values.append(shares[beyond] if beyond < len(radii) else 0.0)
        return float(np.mean(values))

    @property
    def largest(self) -> float:
        return max(float(one["curve"][-1][0]) for one in self.certificates)


def certified_groups(groups: Sequence[Group]) -> list[CertifiedGroup]:
    """Those with a run that was certified."""
    found = [(g.name, [c for r in g.records if (c := read_certificate(r.folder))]) for g in groups]
    return [CertifiedGroup(name, certificates) for name, certificates in found if certificates]


def certificate_table(groups: Sequence[Group]) -> TextTable | None:
    """None where nothing was certified."""
    certified = certified_groups(groups)
    if not certified:
        return None
    largest = max(one.largest for one in certified)
    radii = [share * largest for share in _SHARES]
    heads = (*text_columns("run", "against"), *number_columns("accuracy of the vote", *(f"{r:.3g}" for r in radii)))
    rows = [
        row(one.name, _threat(one), _percent(_voted(one)), *(_percent(one.at(r)) for r in radii)) for one in certified
    ]
    return TextTable(heads, tuple(rows), notes=(MEANING,), style="wide")


def certificate_plots(groups: Sequence[Group]) -> list[Plot]:
    """One figure, where something was certified."""
    certified = certified_groups(groups)
    if not certified:
        return []
    return [
        Plot(
            "certified",
            "Certified accuracy",
            "The share of test examples whose class no backdoor of this size changes; the mean over seeds.",
            f"{len(certified)} groups; the largest certified radius is {max(c.largest for c in certified):.3g}.",
            lambda: _draw(certified),
        )
    ]


def _draw(certified: Sequence[CertifiedGroup]) -> Figure:
    figure, axes = theme.canvas(6.4, 3.4)
    for number, one in enumerate(certified):
        grid = np.linspace(0.0, one.largest, 101)
        style = {**theme.line_style(number), "marker": ""}
        shares = [100 * one.at(r) for r in grid]
        axes.plot([*grid, one.largest], [*shares, 0.0], label=one.name, **style)  # beyond it nothing is certified
    axes.set_xlabel("size of the backdoor (L2)")
    axes.set_ylabel("certified accuracy, %")
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def _threat(one: CertifiedGroup) -> str:
    c = one.certificates[0]
    who = f"{c['attackers']} attacker{'s' if c['attackers'] != 1 else ''}, rate {c['rate']:g}"
    lipschitz = "" if c["lipschitz"] == 1 else f", Lipschitz constant {c['lipschitz']:g}"
    return f"{who}{lipschitz}, in round {c['attacked_round']}; {c['votes']:,} votes, alpha {c['alpha']:g}"


def _voted(one: CertifiedGroup) -> float:
    return float(np.mean([c["accuracy"] for c in one.certificates]))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
