"""Every kernel compiles to machine code of current GPUs; none is needed for that."""

import pytest
from triton_checks import compile_for_gpus

from intnacl.models.kernels import stem as fused_stem
from intnacl.models.kernels import triton_stem as stem_kernels

SIZES = {"C": 3, "K": 64, "T": 32}
TILES = {"convolve": fused_stem.RESULT_TILE, "weight_sums": fused_stem.SUMS_TILE}
KINDS = {"weight": "*bf16", "y": "*bf16", "dy": "*bf16", "out": "*fp32"}


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning")
@pytest.mark.parametrize("pixels", ["*fp32", "*bf16"])
@pytest.mark.parametrize("name", TILES)
def test_kernel_compiles(name: str, pixels: str) -> None:
    constants = SIZES | TILES[name]
    warps = constants.pop("num_warps")
    compile_for_gpus(getattr(stem_kernels, name), KINDS | {"x": pixels}, constants, warps)
