"""What one run may claim: the request in its file, the policy that keeps it true, leak checks, and its account."""

from atoll.privacy.run.account import Account
from atoll.privacy.run.dpsgd import ExamplePrivacy, make_example_privacy
from atoll.privacy.run.leak_check import metrics_read
from atoll.privacy.run.policy import RunPrivacy, plan_privacy
from atoll.privacy.run.tables import LocalPrivacyTable, PrivacyTable, SimulateTable

__all__ = [
    "Account",
    "ExamplePrivacy",
    "LocalPrivacyTable",
    "PrivacyTable",
    "RunPrivacy",
    "SimulateTable",
    "make_example_privacy",
    "metrics_read",
    "plan_privacy",
]
