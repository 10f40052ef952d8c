"""Triton kernels on a CPU: in a process of their own, whose kernels go through Triton's interpreter."""

import importlib.util
import os
import subprocess
import sys

import pytest

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def interpreted(program: str) -> None:
    """Run a program whose kernels are interpreted; it must end well. A negative status is a signal: memory not its own."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr}"
