"""What an adversary can show about a run: lower bounds on epsilon, beside the accounted upper bounds."""

from atoll.audit.canaries import Canaries, without_noise
from atoll.audit.onerun import Bound, best_bound, lower_bound, p_value
from atoll.audit.turns import drawn

__all__ = ["Bound", "Canaries", "best_bound", "drawn", "lower_bound", "p_value", "without_noise"]
