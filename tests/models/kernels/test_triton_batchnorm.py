"""Every kernel compiles to machine code of current GPUs; none is needed for that."""

from typing import Any

import pytest
from triton_checks import compile_for_gpus

from intnacl.models.kernels import triton_batchnorm as norm_kernels

TILE = {"ROWS": 32, "WIDTH": 64}
LOOP = TILE | {"STAGES": 4}
TABLE = {"GROUPS": 2, "SLOTS": 256, "WIDTH": 8}
CONSTANTS: dict[str, dict[str, Any]] = {
    "sums": LOOP,
    "statistics": TABLE,
    "apply": TILE | {"ADDED": True, "RELU": True},
    "gradient_sums": LOOP | {"TWO": True, "ADDED": True, "RELU": True},
    "slopes": TABLE,
    "gradient": TILE | {"TWO": True, "RELU": True},
}
NUMBERS = dict.fromkeys(("P", "C", "S", "V", "clean", "together"), "i32")
HALVES = dict.fromkeys(("x", "y", "dx", "shortcut", "first", "second", "kept"), "*bf16")
FLOATS = dict.fromkeys(("eps", "momentum", "other_momentum"), "fp32")


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning")
@pytest.mark.parametrize("ones", [(), ("together",)], ids=lambda ones: ",".join(ones))
@pytest.mark.parametrize("name", CONSTANTS)
def test_kernel_compiles(name: str, ones: tuple[str, ...]) -> None:
    """Triton takes a number that is 1 as a constant: such a call is another kernel."""
    kernel = getattr(norm_kernels, name)
    kinds = dict.fromkeys(kernel.arg_names, "*fp32") | NUMBERS | HALVES | FLOATS
    constants = CONSTANTS[name] | {one: 1 for one in ones if one in kernel.arg_names}
    compile_for_gpus(kernel, kinds, constants, warps=2)


@pytest.mark.parametrize("name", CONSTANTS)
def test_no_kernel_is_compiled_anew_for_another_count(name: str) -> None:
    general = {p.name for p in getattr(norm_kernels, name).params if p.do_not_specialize}
    assert general == set(norm_kernels.COUNTS) & set(getattr(norm_kernels, name).arg_names)
    assert "V" in general or name == "sums"
