"""The card of a method: effectiveness, robustness, efficiency, privacy and fairness from the same runs.

scores.py        Atoll's scores, pure           fedeval_rules.py   FedEval's
capability.py    VFLAIR's                       profiles.py        from what was measured to scores
scenarios.py     the conditions of a card       attacks.py         where attacks are joined
card_plan.py     methods x conditions x seeds   card_budget.py     as much of it as fits a time
card_measures.py what the runs say              score_card.py      axes with intervals
card_tables.py   the tables behind the axes     radar.py           the chart
card_page.py     page, pictures, JSON           make_card.py       all of it in one call
suite_card.py    of the cells of a suite
"""

from atoll.card.attacks import WORST_OF
from atoll.card.card_page import PAGE, PAPER, PICTURE, VALUES, lead, page, values, write
from atoll.card.card_plan import CardPlan, named_sources
from atoll.card.card_tables import score_table
from atoll.card.make_card import CardOptions, CardOutcome, plan_card, run_card
from atoll.card.profiles import PROFILES
from atoll.card.score_card import ScoreCard, rescored
from atoll.card.suite_card import suite_card_options, suite_sources

__all__ = [
    "PAGE",
    "PAPER",
    "PICTURE",
    "PROFILES",
    "VALUES",
    "WORST_OF",
    "CardOptions",
    "CardOutcome",
    "CardPlan",
    "ScoreCard",
    "lead",
    "named_sources",
    "page",
    "plan_card",
    "rescored",
    "run_card",
    "score_table",
    "suite_card_options",
    "suite_sources",
    "values",
    "write",
]
