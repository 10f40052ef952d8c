"""The same run on many processes: who does what, and how what they found becomes one."""

from atoll.engines.ranks.balance import Costs, Schedule, deal, greedy, in_turn
from atoll.engines.ranks.ranked import Ranked, ranked
from atoll.engines.ranks.sharded_store import HomeRows
from atoll.engines.ranks.world import ALONE, World, join

__all__ = ["ALONE", "Costs", "HomeRows", "Ranked", "Schedule", "World", "deal", "greedy", "in_turn", "join", "ranked"]
