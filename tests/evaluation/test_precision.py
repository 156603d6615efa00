"""TF32 is off inside, for matrix products and convolutions, and the program's settings are restored."""

import subprocess
import sys
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from intnacl.evaluation.precision import exact_float32, exact_matmul, tf32_convolutions


@pytest.mark.parametrize("before", [True, False])
def test_tf32_and_cudnns_search_are_off_inside_and_restored_after_an_error(before):
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    former = cudnn.allow_tf32, cudnn.benchmark, matmul.allow_tf32
    try:
        cudnn.allow_tf32 = cudnn.benchmark = matmul.allow_tf32 = before
        with suppress(KeyError), exact_float32():
            assert {cudnn.allow_tf32, cudnn.benchmark, matmul.allow_tf32} == {False}
            raise KeyError
        assert cudnn.allow_tf32 is cudnn.benchmark is matmul.allow_tf32 is before
        matmul.allow_tf32 = not before  # as the program may well do next
        torch.get_float32_matmul_precision()
    finally:
        cudnn.allow_tf32, cudnn.benchmark, matmul.allow_tf32 = former


# In a process of its own: once a program has used the newer setting, torch forbids the older one for good.
NEWER = """
import torch
from intnacl.evaluation.precision import exact_float32, exact_matmul, tf32_convolutions

conv, matmul = torch.backends.cudnn.conv, torch.backends.cuda.matmul
torch.backends.fp32_precision = conv.fp32_precision = matmul.fp32_precision = "tf32"
with exact_float32():
    assert (conv.fp32_precision, matmul.fp32_precision) == ("ieee", "ieee"), conv.fp32_precision
    with tf32_convolutions():
        assert (conv.fp32_precision, matmul.fp32_precision) == ("tf32", "ieee"), conv.fp32_precision
    assert (conv.fp32_precision, matmul.fp32_precision) == ("ieee", "ieee"), conv.fp32_precision
assert (conv.fp32_precision, matmul.fp32_precision) == ("tf32", "tf32"), conv.fp32_precision
"""


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="this torch has the older setting only")
def test_exact_float32_works_with_the_newer_setting_of_each_backend():
    result = subprocess.run([sys.executable, "-c", NEWER], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def test_a_torch_with_the_older_setting_only(monkeypatch):
    cudnn = SimpleNamespace(allow_tf32=True, benchmark=True)
    monkeypatch.setattr(torch.backends, "cudnn", cudnn)
    with exact_float32():
        assert vars(cudnn) == {"allow_tf32": False, "benchmark": False}
        with tf32_convolutions():
            assert cudnn.allow_tf32
        assert not cudnn.allow_tf32
    assert vars(cudnn) == {"allow_tf32": True, "benchmark": True}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="TF32 is a GPU's")
def test_convolutions_inside_are_as_exact_as_float32():
    x, w = torch.rand(8, 64, 32, 32, device="cuda"), torch.rand(64, 64, 3, 3, device="cuda")
    exact = torch.nn.functional.conv2d(x.double(), w.double())
    with exact_float32():
        inside = torch.nn.functional.conv2d(x, w)
    assert float(((inside - exact) / exact).abs().max()) < 1e-5


@pytest.mark.parametrize("newer", [False, True])
def test_matmul_precision_is_restored(newer):
    """By torch's setting for all backends, or by the one of each, which torch has from 2.9 on."""
    matmul = torch.backends.cuda.matmul
    if newer and not hasattr(matmul, "fp32_precision"):
        pytest.skip("needs torch 2.9")
    get = (lambda: matmul.fp32_precision) if newer else torch.get_float32_matmul_precision
    put = partial(setattr, matmul, "fp32_precision") if newer else torch.set_float32_matmul_precision
    before, fast, exact = get(), *(("tf32", "ieee") if newer else ("high", "highest"))
    put(fast)
    try:
        with exact_matmul():
            assert get() == exact
        assert get() == fast
    finally:
        put(before)
