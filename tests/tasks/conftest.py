"""What tests of tasks share."""

import pytest

from atoll.privacy import dpsgd_plan
from atoll.privacy.rdp import Rdp


@pytest.fixture
def rough_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epsilon by Rényi divergences, where models are tested: loss distributions take longer than the training."""
    monkeypatch.setattr(dpsgd_plan, "BEST", dict.fromkeys(dpsgd_plan.BEST, Rdp()))
