"""Batch norm by groups of views, the shortcut and the ReLU after it in as few passes over memory as can be:

    y = max(γ (x − μ_g) / sqrt(σ²_g + ε) + β + r, 0)

forwards one pass for the statistics and one to apply them, backwards as much again, by the kernels of
`norm_kernels`.

Shapes: V views of P rows each (the places of a view's images), C channels, S slots a view for partial sums.
"""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

import intnacl.models.kernels.triton_batchnorm as kernels

# What was fastest on an H200 for the layers of a ResNet-18.
TILE = 32, 64  # rows and columns of a tile
WARPS = 2
TABLE_WARPS = 8  # where slots are added up
STAGES = 4  # tiles on their way while one is added up
PROGRAMS = 396  # that share one reduction: three for each multiprocessor


class _Layout(NamedTuple):
    """How the rows of x fall into groups: `clean` views in groups of `together`, then adversarial ones."""

    views: int
    clean: int
    together: int


def norm_relu(
    x: Tensor,
    clean: nn.BatchNorm2d,
    adversarial: nn.BatchNorm2d | None,
    groups: tuple[tuple[int, bool], ...],
    *,
    relu: bool,
    shortcut: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """x normalised, the shortcut added, rectified (if `relu`), twice; running statistics are moved.

    `groups` are (number of views, whether adversarial): clean ones first and of one size, then adversarial
    ones of one view. The two results are one tensor: give one to each of two users, and their gradients meet
    in the kernel that needs their sum, which saves a pass to add them up.
    """
    layout = _layout(groups)
    assert x.ndim in (2, 4)
    assert len(x) % layout.views == 0
    assert shortcut is None or (relu and shortcut.shape == x.shape)
    other = clean if adversarial is None else adversarial
    used = _parameters(clean, layout.clean > 0) + _parameters(other, layout.clean < layout.views)
    # Kernels start on the current GPU, wherever x is; autograd sees to that by itself backwards.
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        y: tuple[Tensor, Tensor] = _NormReLU.apply(x, shortcut, *used, clean, other, layout, relu)
    return y


def _layout(groups: tuple[tuple[int, bool], ...]) -> _Layout:
    clean = [views for views, attacked in groups if not attacked]
    together, adversarial = clean[0] if clean else 1, len(groups) - len(clean)
    assert groups == ((together, False),) * len(clean) + ((1, True),) * adversarial
    return _Layout(views=sum(clean) + adversarial, clean=sum(clean), together=together)


def _parameters(layer: nn.BatchNorm2d, used: bool) -> tuple[Tensor | None, Tensor | None]:
    """γ and β; those that no view uses get no gradient, as with torch."""
    return (layer.weight, layer.bias) if used else (None, None)


class _NormReLU(torch.autograd.Function):
    """The four parameters are inputs so that autograd knows of them; kernels take them from the layers."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        shortcut: Tensor | None,
        *parameters_and_rest: Any,
    ) -> tuple[Tensor, Tensor]:
        clean, other, layout, relu = parameters_and_rest[4:]
        x, added = _as_rows(x), shortcut is not None
        sizes = _Sizes(x, layout)
        sums, stats = sizes.floats(2, sizes.slots), sizes.floats(4, layout.views)
        kernels.sums[sizes.slots, sizes.across](x, sums, *sizes.rows_columns_slots, **sizes.loop)
        kernels.statistics[sizes.blocks](
            sums,
            stats,
            *_values(clean),
            *_values(other),
            clean.eps,
            *sizes.rows_columns_slots,
            *layout,
            **sizes.table,
        )
        y = torch.empty_like(x)
        kernels.apply[sizes.tiles, sizes.across](
            x, _as_rows(shortcut) if shortcut is not None else x, stats, y,
            *sizes.rows_columns_slots[:2], layout.views, ADDED=added, RELU=relu, **sizes.tile,
        )  # fmt: skip
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y if added else None, stats)
        ctx.sizes, ctx.relu = sizes, relu
        return y, y.view_as(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        x, y, stats = ctx.saved_tensors
        sizes, layout, added = ctx.sizes, ctx.sizes.layout, y is not None
        given = [_as_rows(gradient) for gradient in gradients if gradient is not None]
        if not given:
            return (None,) * len(ctx.needs_input_grad)
        d_shortcut = torch.empty_like(x) if added else None
        sums, slopes = sizes.floats(2, sizes.slots), sizes.floats(2, layout.views)
        kernels.gradient_sums[sizes.slots, sizes.across](
            given[0], given[-1], x, y if added else x, d_shortcut if added else x, stats, sums,
            *sizes.rows_columns_slots, layout.views, TWO=len(given) > 1, ADDED=added, RELU=ctx.relu,
            **sizes.loop,
        )  # fmt: skip
        d_parameters = sizes.floats(4)
        kernels.slopes[sizes.blocks](
            sums, stats, slopes, d_parameters, *sizes.rows_columns_slots, *layout, **sizes.table
        )
        if d_shortcut is not None:  # the sum of both gradients behind the ReLU
            given = [d_shortcut]
        dx = torch.empty_like(x)
        kernels.gradient[sizes.tiles, sizes.across](
            given[0], given[-1], x, stats, slopes, dx, *sizes.rows_columns_slots[:2], layout.views,
            TWO=len(given) > 1, RELU=ctx.relu and not added, **sizes.tile,
        )  # fmt: skip
        wanted = ctx.needs_input_grad[2:6]
        changes = [change if want else None for change, want in zip(d_parameters, wanted, strict=True)]
        return dx, d_shortcut, *changes, *[None] * 4


def _values(layer: nn.BatchNorm2d) -> tuple[Any, ...]:
    return layer.weight, layer.bias, layer.running_mean, layer.running_var, layer.momentum or 0.0


def _as_rows(x: Tensor) -> Tensor:
    """The same values with the channels of a place side by side in memory."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x.contiguous()


class _Sizes:
    """Sizes of a call, and the grids and settings of its kernels."""

    def __init__(self, x: Tensor, layout: _Layout) -> None:
        self.layout, self.device, self.channels = layout, x.device, x.shape[1]
        rows = x.numel() // (self.channels * layout.views)
        height, width = TILE[0], min(TILE[1], triton.next_power_of_2(self.channels))
        self.across = triton.cdiv(self.channels, width)
        tiles = triton.cdiv(rows, height)
        slots = max(1, min(PROGRAMS // (layout.views * self.across), tiles))
        self.slots, self.tiles = layout.views * slots, layout.views * tiles
        self.blocks = (triton.cdiv(self.channels, kernels.BLOCK),)
        self.rows_columns_slots = (rows, self.channels, slots)
        self.tile = {"ROWS": height, "WIDTH": width, "num_warps": WARPS}
        self.loop = self.tile | {"STAGES": STAGES}
        groups = layout.clean // layout.together + layout.views - layout.clean
        self.table = {
            "GROUPS": triton.next_power_of_2(groups),
            # The most that a layer can have, so that all share one kernel: each takes time to compile.
            "SLOTS": triton.next_power_of_2(layout.together * max(1, PROGRAMS // layout.views)),
            "WIDTH": kernels.BLOCK,
            "num_warps": TABLE_WARPS,
        }

    def floats(self, *sizes: int) -> Tensor:
        return torch.empty(*sizes, self.channels, dtype=torch.float32, device=self.device)
