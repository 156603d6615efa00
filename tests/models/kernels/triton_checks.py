"""Runs kernels' checks, on the GPU or, where there is none, in Triton's interpreter; and compiles kernels.

Triton decides when it is first imported whether it interprets: hence a process of its own.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")
VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])

can_run = pytest.mark.skipif(
    not torch.cuda.is_available() and VERSION < (3, 9),
    reason="Triton's interpreter before 3.9 does not suit newer NumPy",
)


def run_checks(name: str) -> None:
    environment = os.environ | ({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"})
    checks = Path(__file__).with_name(name)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(checks)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout


def compile_for_gpus(kernel: Any, kinds: dict[str, str], constants: dict[str, Any], warps: int) -> None:
    """To machine code, for which no GPU is needed. Arguments without a kind are whole numbers."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else kinds.get(name, "i32") for name in names}
    source = ASTSource(kernel, signature, constants)  # the third has had two names
    for capability in (80, 90):
        target = GPUTarget("cuda", capability, 32)
        assert triton.compile(source, target=target, options={"num_warps": warps}).asm["cubin"]
