"""How long the threads of a kernel spin before they sleep."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("given", "heeded"),
    [({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")],
    ids=["nothing", "a count", "a policy"],
)
def test_threads_of_a_kernel_soon_sleep_unless_the_user_has_said_otherwise(given, heeded):
    others = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    code = "import atoll, os, sys; print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=others | given, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [heeded, "False"]
