"""Every kernel compiles to machine code of current GPUs; none is needed for that."""

from typing import Any

import pytest

triton = pytest.importorskip("triton")

TILE = {"ROWS": 32, "WIDTH": 64}
LOOP = TILE | {"STAGES": 4}
CONSTANTS: dict[str, dict[str, Any]] = {
    "sums": LOOP,
    "statistics": {"WIDTH": 8},
    "apply": TILE | {"ADDED": True, "RELU": True},
    "gradient_sums": LOOP | {"TWO": True, "ADDED": True, "RELU": True},
    "slopes": {"WIDTH": 8},
    "gradient": TILE | {"TWO": True, "RELU": True},
}
WHOLE = {"P", "C", "S", "V", "clean", "together"}
HALF = {"x", "y", "dx", "shortcut", "first", "second", "kept"}
FLOATS = {"eps", "momentum", "other_momentum"}


def kind(name: str) -> str:
    if name in WHOLE or name in FLOATS:
        return "i32" if name in WHOLE else "fp32"
    return "*bf16" if name in HALF else "*fp32"


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning")
@pytest.mark.parametrize(
    "ones", [(), ("S",), ("together",), ("V", "clean", "together")], ids=lambda ones: ",".join(ones)
)
@pytest.mark.parametrize("name", CONSTANTS)
def test_kernel_compiles(name: str, ones: tuple[str, ...]) -> None:
    """Triton takes numbers that are 1 as constants: each such call is another kernel."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from intnacl import norm_kernels

    kernel = getattr(norm_kernels, name)
    constants = CONSTANTS[name] | {one: 1 for one in ones if one in kernel.arg_names}
    signature = {arg: "constexpr" if arg in constants else kind(arg) for arg in kernel.arg_names}
    source = ASTSource(kernel, signature, constants)  # the third has had two names
    for capability in (80, 90):
        built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 2})
        assert built.asm["cubin"]
