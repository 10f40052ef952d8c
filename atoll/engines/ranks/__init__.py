"""The same run on many processes: who does what, and how their answers become one."""

from atoll.engines.ranks.balance import Costs, Schedule, deal, greedy, in_turn
from atoll.engines.ranks.ranked import Ranked
from atoll.engines.ranks.sharded_store import ShardedStore
from atoll.engines.ranks.world import ALONE, World, cores, join, joined, launched

__all__ = [
    "ALONE",
    "Costs",
    "Ranked",
    "Schedule",
    "ShardedStore",
    "World",
    "cores",
    "deal",
    "greedy",
    "in_turn",
    "join",
    "joined",
    "launched",
]
