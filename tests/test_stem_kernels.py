"""Every kernel compiles to machine code of current GPUs; none is needed for that."""

import pytest

from intnacl import fused_stem, stem_kernels
from triton_checks import compile_for_gpus

TILE = {"C": 3, "K": 64, "ROWS": fused_stem.ROWS, "T": 32}
CONSTANTS = {"convolve": TILE, "weight_sums": TILE | {"STAGES": fused_stem.STAGES}}
KINDS = {"weight": "*bf16", "y": "*bf16", "dy": "*bf16", "out": "*fp32"}


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning")
@pytest.mark.parametrize("pixels", ["*fp32", "*bf16"])
@pytest.mark.parametrize("name", CONSTANTS)
def test_kernel_compiles(name: str, pixels: str) -> None:
    kernel = getattr(stem_kernels, name)
    compile_for_gpus(kernel, KINDS | {"x": pixels}, CONSTANTS[name], fused_stem.WARPS)
