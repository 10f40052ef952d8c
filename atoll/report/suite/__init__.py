"""The page of a suite, tables for papers, and the leaderboard of many suites: drawn from `atoll.records.Results` alone.

prose.py             a suite in words              scores.py         means, intervals, and who may win
score_table.py       the table as printed          headline.py       what a reader must know first
beside_published.py  against the paper             ranking.py        wins, ranks, Wilcoxon over rows
critical.py          the plot of ranks             pairwise.py       how sure, row by row
curves.py            learning curves               client_spread.py  clients and costs
tuning.py            how settings were found       privacy_page.py   what holds, and what it costs
exports.py           CSV, Markdown, LaTeX          page.py           the page
leaderboard.py       many suites on one page       write.py          all files of a folder
"""

from atoll.report.suite.leaderboard import leaderboard
from atoll.report.suite.write import write, write_page

__all__ = ["leaderboard", "write", "write_page"]
