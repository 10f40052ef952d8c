"""Two sides, compared: runs, sweeps or suites, paired by seed and partition.

load_side.py         what stands at a path: a run, a folder of runs, a sweep, a suite's results
matching.py          the rows that both sides have, seed by seed; what was left out, and why
paired.py            the tests of every row, and over rows
comparison_table.py  the same for a terminal
"""

from atoll.analysis.compare.comparison_table import shown
from atoll.analysis.compare.load_side import SettingRuns, Side, opened
from atoll.analysis.compare.matching import Match, Matched, match
from atoll.analysis.compare.paired import ComparedRow, Comparison, WilcoxonOverRows, compare

__all__ = [
    "ComparedRow",
    "Comparison",
    "Match",
    "Matched",
    "SettingRuns",
    "Side",
    "WilcoxonOverRows",
    "compare",
    "match",
    "opened",
    "shown",
]
