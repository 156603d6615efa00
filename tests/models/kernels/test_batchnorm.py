"""The kernels agree with torch, compile for current GPUs, and are used where they are supported."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from intnacl.models.batchnorm import ViewBatchNorm, convert, remove_norms
from intnacl.models.kernels import fuse
from intnacl.models.resnets import RESNETS, ResNet

triton = pytest.importorskip("triton")
from intnacl.models.kernels import triton_batchnorm  # noqa: E402
from intnacl.models.kernels.batchnorm import Launch, Layout  # noqa: E402

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
TYPES = {
    **dict.fromkeys(("P", "C", "S", "V", "clean", "together"), "i32"),
    **dict.fromkeys(("x", "y", "dx", "shortcut", "first", "second", "kept"), "*bf16"),
    **dict.fromkeys(("eps", "momentum", "other_momentum"), "fp32"),
}


@pytest.mark.skipif(
    not torch.cuda.is_available() and tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9),
    reason="Triton's interpreter before 3.9 does not suit newer NumPy",
)
def test_kernels_do_what_torch_does():
    """On the GPU or in Triton's interpreter, which is chosen when Triton is imported: in a new process."""
    environment = os.environ | ({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"})
    checks = str(Path(__file__).with_name("batchnorm_checks.py"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", checks]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning")
@pytest.mark.parametrize("ones", [(), ("together",)], ids=lambda ones: ",".join(ones))
@pytest.mark.parametrize("name", CONSTANTS)
def test_kernel_compiles_to_machine_code_of_current_gpus(name, ones):
    """No GPU is needed. Triton treats an argument of 1 as a constant: such a call compiles another kernel."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(triton_batchnorm, name)
    constants = CONSTANTS[name] | {one: 1 for one in ones if one in kernel.arg_names}
    signature = {n: "constexpr" if n in constants else TYPES.get(n, "*fp32") for n in kernel.arg_names}
    source = ASTSource(kernel, signature, constants)  # the third has had two names
    for capability in (80, 90):
        target = GPUTarget("cuda", capability, 32)
        assert triton.compile(source, target=target, options={"num_warps": 2}).asm["cubin"]


@pytest.mark.parametrize("name", CONSTANTS)
def test_kernels_are_not_recompiled_for_other_counts(name):
    kernel = getattr(triton_batchnorm, name)
    general = {p.name for p in kernel.params if p.do_not_specialize}
    assert general == set(triton_batchnorm.COUNTS) & set(kernel.arg_names)
    assert "V" in general or name == "sums"


# A pair, IntNaCl, an attack, joint views, and many.
LAYOUTS = [(2, 2, 1), (7, 6, 1), (1, 0, 1), (3, 2, 2), (500, 500, 500)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_all_layers_share_the_kernels_that_sum_slots(layout):
    """Each further one would take a second of every first run. All slots of a group must fit into them."""
    layout = Layout(*layout)
    shapes = [(layout.views * rows, channels, 8, 8) for channels in (16, 64, 128, 512) for rows in (1, 256)]
    launches = [Launch(torch.empty(shape, device="meta"), layout) for shape in shapes]
    assert len({tuple(each.table.items()) for each in launches}) == 1
    assert all(layout.together * each.rows_columns_slots[2] <= each.table["SLOTS"] for each in launches)


@contextmanager
def fake_gpu(dtype: torch.dtype) -> Iterator[None]:
    """Tensors on a GPU that need not exist, of this type by default."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with FakeTensorMode(), torch.device("cuda"):
            try:
                torch.empty(1) + 1
            except RuntimeError as error:
                pytest.skip(f"this torch asks the driver even for fake tensors: {str(error).splitlines()[0]}")
            yield
    finally:
        torch.set_default_dtype(before)


FUSED = [
    (convert, torch.float32, True),
    (convert, torch.float64, False),
    (partial(convert, sync=True), torch.float32, False),
    (remove_norms, torch.float32, False),
]


@pytest.mark.parametrize(("change", "dtype", "suited"), FUSED, ids=["float32", "float64", "sync", "none"])
def test_fuse_leaves_unsupported_models_to_the_compiler(change, dtype, suited, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    with fake_gpu(dtype):
        change(net := ResNet(*RESNETS["resnet18"]))
        for on in (True, False):
            assert fuse(net, on=on) is (on and suited)
            for layer in net.modules():
                assert not isinstance(layer, ViewBatchNorm) or (layer.kernel is not None) is (on and suited)
        assert not fuse(nn.Linear(2, 2), on=True)
    assert not fuse(convert(ResNet(*RESNETS["resnet18"])), on=True), "not on a CPU"


@pytest.mark.parametrize(
    ("shape", "views", "taken"),
    [((4, 3), 2, 2), ((2, 3, 2, 2), 2, 2), ((2, 3), 1, 2), ((2**15, 2**15, 2, 1), 2, 0)],
)
def test_the_kernel_is_used_for_training_batches_of_supported_sizes(shape, views, taken):
    calls = []
    with torch.device("meta"):  # sizes and types alone
        for dtype in (torch.float32, torch.float64):
            x = torch.empty(shape, dtype=dtype)
            norm = ViewBatchNorm(shape[1], adversarial=False, adversarial_momentum=0.01, sync=False).to(dtype)
            norm.kernel, norm.groups = lambda x, *_, **__: calls.append(1) or (x, x), ((1, False),) * views
            norm(x)
            norm.relu(x, None)
            norm.eval()(x)
    assert len(calls) == taken
