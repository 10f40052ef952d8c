"""A secure sum between processes over TCP, one of them killed halfway: examples/secure/sum_over_sockets.py."""

import importlib.util
import os
import subprocess
import sys

import pytest

from tests.support.marks import slow_but
from tests.support.paths import ROOT

EXAMPLE = ROOT / "examples" / "secure" / "sum_over_sockets.py"
BY_MASKS = ["secagg", "secagg_plus", "light_secagg"]


def start(*arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *arguments], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def there(protocol: str) -> bool:
    return protocol not in BY_MASKS or importlib.util.find_spec(f"atoll.protocols.{protocol}") is not None


@pytest.mark.parametrize(
    "protocol", slow_but(filter(there, [*BY_MASKS, "paillier", "ckks"]), *filter(there, ["secagg"]))
)
def test_the_sum_of_five_processes_is_right_when_the_sixth_is_killed_halfway(protocol: str) -> None:
    said = start("--protocol", protocol, "--clients", "6", "--kill", "3")
    assert "in the sum: [0, 1, 2, 4, 5]" in said
    assert "the sum is that of their vectors" in said
    (killed,) = [line for line in said.splitlines() if line.startswith("client 3")]
    assert killed.endswith("hung up")
    assert said.count("stayed to the end") == 5
    assert len({line.split("process ")[1].split(",")[0] for line in said.splitlines() if "process" in line}) == 6


@pytest.mark.slow
def test_one_that_is_killed_after_its_vector_arrived_is_in_the_sum() -> None:
    said = start("--protocol", "paillier", "--kill", "3", "--step", "3")
    assert "in the sum: [0, 1, 2, 3, 4, 5]" in said
    assert "the sum is that of their vectors" in said
