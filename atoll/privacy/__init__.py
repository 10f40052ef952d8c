"""Events, accountants and calibration: numbers only.

A mechanism says what it did (an event), an accountant says what it cost:

>>> from atoll import privacy
>>> one = privacy.Sampled(privacy.Gaussian(1.0), "everyone", population=100, cohort=100)
>>> round(privacy.Analytic().epsilon(privacy.Composed(((one, 4),)), delta=1e-5), 3)
9.997
"""

from atoll.privacy.accountant import Accountant, supported_terms
from atoll.privacy.analytic import Analytic, gaussian_delta, gaussian_epsilon
from atoll.privacy.calibrate import noise_for, rounds_for
from atoll.privacy.composition import Adjacency, amplified, explain, flatten
from atoll.privacy.dpsgd_plan import DpSgdPlan
from atoll.privacy.events import (
    Approximate,
    Banded,
    Composed,
    DistributedDiscreteGaussian,
    DistributedSkellam,
    Event,
    Gaussian,
    Laplace,
    NotPrivate,
    Pure,
    Sampled,
    SamplingScheme,
    Shuffled,
    TreeAggregation,
    check_delta,
    check_epsilon,
    check_noise,
)
from atoll.privacy.factorisation import banded
from atoll.privacy.ledger import ACCOUNTANTS, Ledger
from atoll.privacy.plan import PrivacyPlan, accountant_for
from atoll.privacy.pld import Pld
from atoll.privacy.prv import Prv
from atoll.privacy.rdp import Rdp
from atoll.privacy.shuffling import shuffled
from atoll.privacy.snr import signal_to_noise

__all__ = [
    "ACCOUNTANTS",
    "Accountant",
    "Adjacency",
    "Analytic",
    "Approximate",
    "Banded",
    "Composed",
    "DistributedDiscreteGaussian",
    "DistributedSkellam",
    "DpSgdPlan",
    "Event",
    "Gaussian",
    "Laplace",
    "Ledger",
    "NotPrivate",
    "Pld",
    "PrivacyPlan",
    "Prv",
    "Pure",
    "Rdp",
    "Sampled",
    "SamplingScheme",
    "Shuffled",
    "TreeAggregation",
    "accountant_for",
    "amplified",
    "banded",
    "check_delta",
    "check_epsilon",
    "check_noise",
    "explain",
    "flatten",
    "gaussian_delta",
    "gaussian_epsilon",
    "noise_for",
    "rounds_for",
    "shuffled",
    "signal_to_noise",
    "supported_terms",
]
