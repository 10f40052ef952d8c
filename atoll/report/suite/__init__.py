"""The page of a suite, tables for papers, and the leaderboard of many suites: drawn from `atoll.records.Results` alone.

scores.py            means, intervals, and who may win    score_table.py   the table as printed
headline.py          what a reader must know first        ranking.py       wins, ranks, Wilcoxon over rows
beside_published.py  against the paper                    critical.py      the plot of ranks
pairwise.py          how sure, row by row                 curves.py        learning curves
client_spread.py     clients and costs                    tuning.py        how settings were found
privacy_page.py      what every cell holds                exports.py       CSV, Markdown, LaTeX
seconds_table.py     virtual time, and who saw what       severity.py      the metric as a function of a condition
page.py              the page                             leaderboard.py   the leaderboard
write.py             all files of a folder                worst_attack.py  heat maps, and the worst over an axis
"""

from atoll.report.suite.leaderboard import leaderboard
from atoll.report.suite.score_table import summary
from atoll.report.suite.write import write, write_page

__all__ = ["leaderboard", "summary", "write", "write_page"]
