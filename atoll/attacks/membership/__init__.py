"""Membership attacks on runs: what their models say about who was in the data.

loss_threshold.py  the loss threshold (Yeom et al., 2018) on the model of a finished run
random_half.py     a partition of which a random half is in the run
shadow.py          runs of the same recipe on such halves, and the likelihood ratio (LiRA; Carlini et al., 2022)
audit.py           all of it, written beside the run
"""

from atoll.attacks.membership.audit import audit
from atoll.attacks.membership.loss_threshold import model_in

__all__ = ["audit", "model_in"]
