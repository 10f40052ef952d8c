"""What an adversary can show about a run: lower bounds on epsilon, beside the accounted upper bounds."""

from atoll.attacks.canaries import Canaries, without_noise
from atoll.attacks.canary_audit import CanaryAudit, Planted
from atoll.attacks.canary_sampling import drawn
from atoll.attacks.lira import ENOUGH_SHADOWS, likelihood_ratio, logit_confidence
from atoll.attacks.membership_metrics import CONFIDENCE, clopper_pearson, judge
from atoll.attacks.onerun import Bound, best_bound, lower_bound, p_value

__all__ = [
    "CONFIDENCE",
    "ENOUGH_SHADOWS",
    "Bound",
    "Canaries",
    "CanaryAudit",
    "Planted",
    "best_bound",
    "clopper_pearson",
    "drawn",
    "judge",
    "likelihood_ratio",
    "logit_confidence",
    "lower_bound",
    "p_value",
    "without_noise",
]
