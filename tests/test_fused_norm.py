"""The kernels' checks, on the GPU or, where there is none, in Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

triton = pytest.importorskip("triton")
VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])


@pytest.mark.skipif(
    not torch.cuda.is_available() and VERSION < (3, 9),
    reason="Triton's interpreter before 3.9 does not suit newer NumPy",
)
def test_kernels_do_what_torch_does() -> None:
    """Triton decides when it is first imported whether it interprets: hence a process of its own."""
    environment = os.environ | ({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"})
    checks = Path(__file__).with_name("fused_norm_checks.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(checks)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
