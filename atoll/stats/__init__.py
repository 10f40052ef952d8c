"""Statistics: what seeds allow one to say. Numbers in, numbers out; never torch, never a record.

    intervals.py     mean, spread, t and bootstrap intervals of one method over its seeds
    paired.py        values of several methods, paired by seed
    bayes.py         the correlated t-test with a rope: p(A better), p(equal), p(B better)
    signed_rank.py   Wilcoxon's test, and Holm's correction for many of them
    ranks.py         average ranks over the rows of a table, Friedman's test, the critical difference
    stability.py     does leaving out a seed change the order?
    sample_size.py   how many seeds would settle it?
    smoothed_models.py  CRFL's certificate against backdoors
    validate.py      what all of them take: finite numbers

Values that no statistic can use raise `atoll.errors.DataError`, arguments `ConfigError`.

>>> a, b, aligned = pair({0: 0.91, 1: 0.93, 2: 0.92, 3: 0.95}, {0: 0.90, 1: 0.90, 2: 0.91, 3: 0.92})
>>> correlated_t(a, b, rope=0.005, rho=0).verdict()
'a'
"""

from atoll.stats.bayes import SURE, Posterior, correlated_t
from atoll.stats.intervals import Estimate, bootstrap_interval, half_width, t_interval
from atoll.stats.paired import Aligned, align, pair
from atoll.stats.ranks import Friedman, average_ranks, critical_difference, friedman, not_different, row_ranks
from atoll.stats.sample_size import MOST_SEEDS, chance_to_settle, power, seeds_for_power, seeds_to_settle
from atoll.stats.signed_rank import Wilcoxon, holm, wilcoxon
from atoll.stats.smoothed_models import BackdoorThreat, certified_radius, vote_bounds
from atoll.stats.stability import Stability, Swap, rank_stability

__all__ = [
    "MOST_SEEDS",
    "SURE",
    "Aligned",
    "BackdoorThreat",
    "Estimate",
    "Friedman",
    "Posterior",
    "Stability",
    "Swap",
    "Wilcoxon",
    "align",
    "average_ranks",
    "bootstrap_interval",
    "certified_radius",
    "chance_to_settle",
    "correlated_t",
    "critical_difference",
    "friedman",
    "half_width",
    "holm",
    "not_different",
    "pair",
    "power",
    "rank_stability",
    "row_ranks",
    "seeds_for_power",
    "seeds_to_settle",
    "t_interval",
    "vote_bounds",
    "wilcoxon",
]
