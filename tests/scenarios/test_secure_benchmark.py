"""What benchmarks/secure.py measures against stand-ins is what a whole round has."""

import sys

import pytest

from tests.support.paths import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
from secure import everybody, one, protocols


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("name", protocols(32))
def test_a_client_among_stand_ins_sends_and_gets_the_same_bytes(name: str, lost: int) -> None:
    protocol = protocols(32)[name]
    if lost > 5 - protocol.least(5):
        pytest.skip("nobody may drop out")
    whole, alone = (measure(name, protocol, 5, 50, lost) for measure in (everybody, one))
    assert (whole.up_bytes, whole.down_bytes) == (alone.up_bytes, alone.down_bytes)
    assert (whole.measured, alone.measured) == ("all", "one")
    assert min(alone.client_seconds, alone.server_seconds) > 0
