"""The same run on many processes: who does what, and how what they found becomes one."""

from atoll.ranks.balance import Costs, Schedule, deal, greedy, in_turn
from atoll.ranks.engine import Ranked, ranked
from atoll.ranks.memory import HomeRows
from atoll.ranks.world import ALONE, World, join

__all__ = ["ALONE", "Costs", "HomeRows", "Ranked", "Schedule", "World", "deal", "greedy", "in_turn", "join", "ranked"]
