"""What every client contributes: leave-one-out and Shapley's value.

coalitions.py          a game of clients, valued once and counted
shapley.py             exact values, leave-one-out, TMC-Shapley, the rounds of GTG-Shapley
trained.py             coalitions valued by training them, as stacked runs
reconstructed.py       coalitions valued within a round, from recorded updates, as one stack
contribution.py        all of it, with error bars and cost
contribution_table.py  the same for people
"""

from atoll.analysis.contribution.contribution import (
    Contribution,
    ContributionMethod,
    ContributionOptions,
    as_json_table,
    contribution,
)
from atoll.analysis.contribution.contribution_table import contribution_table

__all__ = [
    "Contribution",
    "ContributionMethod",
    "ContributionOptions",
    "as_json_table",
    "contribution",
    "contribution_table",
]
