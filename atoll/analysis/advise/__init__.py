"""Which algorithm for these clients? What did best on the nearest settings that were measured (NIID-Bench, figure 6).

target.py        what is asked about: data and partition, and how unlike the clients are
distance.py      how far two settings are apart
evidence.py      the results of suites as settings: who did best there, and by how much
next_step.py     what would bring evidence, where there is none
advice.py        the nearest of them, in words
advice_table.py  the same for a terminal
"""

from atoll.analysis.advise.advice import Advice, advise, words
from atoll.analysis.advise.advice_table import shown
from atoll.analysis.advise.distance import KINDS, OTHER_DATA, OTHER_PRIVACY, WITHIN, Distance, distance
from atoll.analysis.advise.evidence import Setting, default_evidence, read_evidence, settings
from atoll.analysis.advise.target import Target, target

__all__ = [
    "KINDS",
    "OTHER_DATA",
    "OTHER_PRIVACY",
    "WITHIN",
    "Advice",
    "Distance",
    "Setting",
    "Target",
    "advise",
    "default_evidence",
    "distance",
    "read_evidence",
    "settings",
    "shown",
    "target",
    "words",
]
