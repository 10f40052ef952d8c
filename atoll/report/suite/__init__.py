"""The page of a suite, tables for papers, and the leaderboard of many suites: drawn from `atoll.records.Results` alone.

words.py      a suite in words           scores.py    means, intervals, and who may win
table.py      the table as printed       headline.py  what a reader must know first
paper.py      against the paper          ranking.py   wins, ranks, Wilcoxon over rows
critical.py   the plot of ranks          pairs.py     how sure, row by row
curves.py     learning curves            spread.py    clients and costs
tuning.py     how settings were found    exports.py   CSV, Markdown, LaTeX
page.py       the page                   board.py     the leaderboard
write.py      all files of a folder
"""

from atoll.report.suite.leaderboard import leaderboard
from atoll.report.suite.write import write, write_page

__all__ = ["leaderboard", "write", "write_page"]
