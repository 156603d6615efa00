"""The first convolution of a ResNet by the kernels of `stem_kernels`: as fast as its result can be written.

    y[k, i, j] = Σ_{c, u, v} w[k, c, u, v] x[c, i + u − 1, j + v − 1]

cuDNN's convolutions are made for many channels and take four times as long with three.

Shapes: B images, C channels in, K out, H×W places.
"""

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.grad import conv2d_input

import intnacl.models.kernels.triton_stem as kernels

# Tiles of places, by time on an H200.
RESULT_TILE = {"ROWS": 128, "num_warps": 4}
SUMS_TILE = {"ROWS": 64, "num_warps": 2, "STAGES": 3}
PROGRAMS = 528  # that share the weights' gradient: four for each multiprocessor of an H200


def convolve(x: Tensor, weight: Tensor) -> Tensor:
    """x (B, C, H, W) of any type and order in memory, weight (K, C, 3, 3) -> (B, K, H, W) in weight's type.

    Padding 1, stride 1, no bias; 9·C ≤ 32 and K a power of two from 16. x is rounded to weight's type.
    """
    assert weight.shape[2:] == (3, 3)
    assert 9 * weight.shape[1] <= 32
    assert weight.shape[0] in (16, 32, 64, 128)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        y: Tensor = _Convolve.apply(x, weight)
    return y


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        (B, _, H, W), K = x.shape, len(weight)
        y = torch.empty(B, K, H, W, dtype=weight.dtype, device=x.device, memory_format=torch.channels_last)
        kernels.convolve[(triton.cdiv(B * H * W, RESULT_TILE["ROWS"]),)](
            x, weight.contiguous(memory_format=torch.channels_last), y,
            *_places(x), **_sizes(weight), **RESULT_TILE,
        )  # fmt: skip
        ctx.save_for_backward(x, weight)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        wanted_x, wanted_weight = ctx.needs_input_grad
        dx = conv2d_input(x.shape, weight, dy, padding=1) if wanted_x else None  # type: ignore[no-untyped-call]
        return dx, _weight_gradient(x, weight, dy) if wanted_weight else None


def _weight_gradient(x: Tensor, weight: Tensor, dy: Tensor) -> Tensor:
    (K, C), places, sizes = weight.shape[:2], _places(x), _sizes(weight)
    programs = min(PROGRAMS, triton.cdiv(places[0], SUMS_TILE["ROWS"]))
    parts = torch.empty(programs, K, sizes["T"], dtype=torch.float32, device=x.device)
    kernels.weight_sums[(programs,)](x, dy, parts, *places, **sizes, **SUMS_TILE)
    total = parts.sum(0)[:, : 9 * C].to(weight.dtype)
    return total.view(K, 3, 3, C).permute(0, 3, 1, 2)


def _places(x: Tensor) -> tuple[int, ...]:
    """N, H, W and the strides of x."""
    B, _, H, W = x.shape
    return B * H * W, H, W, *x.stride()


def _sizes(weight: Tensor) -> dict[str, int]:
    return {"C": weight.shape[1], "K": len(weight), "T": 32}
