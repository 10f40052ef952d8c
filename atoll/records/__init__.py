"""Results: what came of a suite, small enough to commit and complete enough to draw every page from. Never torch.

    cells.py       the values: a suite's cells, their runs seed by seed, the trials that chose their settings
    files.py       results.json, read and written
    privacy.py     what a run says of its privacy, as far as it may be printed
    audits.py      what attacks found, and whether it contradicts that
    published.py   what papers report, with its source (reference/*.csv)
    against.py     ours and theirs, cell by cell, with a verdict

>>> run = Trace(0, "digest", rounds=(1, 2, 3), values=(0.5, 0.8, 0.7), bytes=(9, 18, 27), seconds=(1.0, 2.0, 3.0))
>>> run.last, run.best(higher=True)
(0.7, 0.8)
"""

from atoll.records.cells import Cell, Results, Trace, Trial
from atoll.records.results_file import read, write

__all__ = ["Cell", "Results", "Trace", "Trial", "read", "write"]
