"""Triton kernels on a CPU: in a process of their own, whose kernels go through Triton's interpreter."""

import importlib.util
import os
import subprocess
import sys

import pytest

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


# NumPy no longer takes an array of one number for a whole number, which Triton 3.6 has bounds of loops be.
BOUNDS = """
import triton.runtime.interpreter as interpreter
plain = interpreter._patch_lang_tensor
def patch(tensor, scope):
    plain(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))
interpreter._patch_lang_tensor = patch
"""


def interpreted(program: str) -> None:
    """Run a program whose kernels are interpreted; it must end well. A negative status: memory that is not its own."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", BOUNDS + program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr}"
