"""The first convolution by kernels: as torch has it, forwards and backwards.

`test_fused_stem.py` runs this file in a process of its own, where Triton may interpret its kernels.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from intnacl.models.kernels.stem import convolve

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.bfloat16 if torch.cuda.is_available() else torch.float16  # the interpreter cannot multiply bf16
ORDERS = {"channels last": torch.channels_last, "channels first": torch.contiguous_format}


def weights(inside: int = 3, outside: int = 16) -> Tensor:
    w = torch.randn(outside, inside, 3, 3, device=DEVICE)
    return w.to(HALF).contiguous(memory_format=torch.channels_last).requires_grad_()


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("size", [(3, 7, 5), (2, 16, 16), (1, 1, 1)], ids=str)
def test_result_and_gradients_are_torchs(
    size: tuple[int, int, int], dtype: torch.dtype, order: torch.memory_format
) -> None:
    torch.manual_seed(0)
    B, H, W = size
    x = torch.randn(B, 3, H, W, device=DEVICE).to(dtype).contiguous(memory_format=order).requires_grad_()
    w = weights()
    y = convolve(x, w)
    exact = [v.detach().to(HALF).double().requires_grad_() for v in (x, w)]
    wanted = F.conv2d(*exact, padding=1)
    assert y.dtype == HALF
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y.double(), wanted, rtol=2**-8, atol=1e-3)
    d = torch.randn_like(y)
    found = torch.autograd.grad(y, [x, w], d)
    for a, b in zip(found, torch.autograd.grad(wanted, exact, d.double()), strict=True):
        assert a.shape == b.shape
        assert (a.double() - b).norm() <= 2**-7 * b.norm()


@pytest.mark.parametrize("inside", [1, 2, 3])
def test_fewer_channels_will_do(inside: int) -> None:
    x, w = torch.randn(2, inside, 6, 6, device=DEVICE).to(HALF), weights(inside, 32)
    torch.testing.assert_close(
        convolve(x, w).double(), F.conv2d(x.double(), w.double(), padding=1), rtol=2**-8, atol=1e-3
    )


def test_equal_calls_give_equal_bytes() -> None:
    x, w = torch.randn(4, 3, 20, 20, device=DEVICE), weights()
    results = [convolve(x, w) for _ in range(2)]
    gradients = [torch.autograd.grad(y.square().sum(), w)[0] for y in results]
    assert torch.equal(*results)
    assert torch.equal(*gradients)


def test_a_second_derivative_is_refused() -> None:
    x, w = torch.randn(1, 3, 4, 4, device=DEVICE), weights()
    y = convolve(x, w)
    (gradient,) = torch.autograd.grad(y.float().square().sum(), w, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        (y.float().sum() + gradient.float().square().sum()).backward()


def test_images_without_a_gradient_get_none() -> None:
    x, w = torch.randn(1, 3, 4, 4, device=DEVICE), weights()
    convolve(x, w).float().sum().backward()
    assert x.grad is None
    assert w.grad is not None
