"""Batch norm by groups of views, with the shortcut and the ReLU after it, in few passes over memory:

    y = max(γ (x − μ_g) / sqrt(σ²_g + ε) + β + r, 0)

The forward pass reads x once for the statistics and once to apply them; the backward pass does the same with
the gradient. The kernels are those of `triton_batchnorm`.

Shapes: V views of P rows each (the places of a view's images), C channels, S slots per view for partial sums.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor, nn

import intnacl.models.kernels.triton_batchnorm as kernels
from intnacl.losses.autograd import refuse_double_backward
from intnacl.models.batchnorm import EqualPair, Group

# What was fastest on an H200 for the layers of a ResNet-18.
TILE = 32, 64  # rows and columns of a tile
WARPS = 2
TABLE_WARPS = 8  # where slots are added up
STAGES = 4  # tiles being loaded while one is added up
PROGRAMS = 396  # programs that share one reduction: three for each multiprocessor


class Layout(NamedTuple):
    """The views in the rows of x: `clean` ones in groups of `together`, then adversarial ones."""

    views: int
    clean: int
    together: int


def norm_relu(
    x: Tensor,
    clean: nn.BatchNorm2d,
    adversarial: nn.BatchNorm2d | None,
    groups: Sequence[Group],
    *,
    relu: bool,
    shortcut: Tensor | None = None,
) -> EqualPair:
    """Normalise x, add the shortcut, rectify (if `relu`), and move the running statistics.

    Args:
        x: (V·B, C) or (V·B, C, H, W).
        clean: The layer of clean views.
        adversarial: The layer of adversarial views; None: that of the clean ones.
        groups: Clean groups first, all of one size, then adversarial ones of one view each.
        relu: Rectify the result.
        shortcut: Added before the ReLU, of the shape of x.
    """
    sizes = [views for views, attacked in groups if not attacked]
    together, attacked = sizes[0] if sizes else 1, len(groups) - len(sizes)
    assert tuple(groups) == ((together, False),) * len(sizes) + ((1, True),) * attacked
    layout = Layout(views=sum(sizes) + attacked, clean=sum(sizes), together=together)
    assert x.ndim in (2, 4)
    assert len(x) % layout.views == 0
    assert shortcut is None or (relu and shortcut.shape == x.shape)
    other = clean if adversarial is None else adversarial
    # Parameters that no view uses get no gradient, as with torch.
    own = (clean.weight, clean.bias) if sizes else (None, None)
    others = (other.weight, other.bias) if attacked else (None, None)
    # Kernels start on the current GPU, wherever x is; in the backward pass autograd takes care of that.
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        pair: EqualPair = _NormReLU.apply(x, shortcut, *own, *others, clean, other, layout, relu)
    return pair


class _NormReLU(torch.autograd.Function):
    """γ and β of both sets are inputs so that they get gradients; the kernels read them from the layers."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        shortcut: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        other_weight: Tensor | None,
        other_bias: Tensor | None,
        clean: nn.BatchNorm2d,
        other: nn.BatchNorm2d,
        layout: Layout,
        relu: bool,
    ) -> EqualPair:
        x, added = _as_rows(x), shortcut is not None
        launch = Launch(x, layout)
        sums, stats = launch.floats(2, launch.slots), launch.floats(4, layout.views)
        kernels.sums[launch.slots, launch.across](
            x, sums, *launch.rows_columns_slots, layout.clean, layout.together, **launch.loop
        )
        kernels.statistics[launch.blocks](
            x,
            sums,
            stats,
            *_values(clean),
            *_values(other),
            clean.eps,
            *launch.rows_columns_slots,
            *layout,
            **launch.table,
        )
        y = torch.empty_like(x)
        kernels.apply[launch.tiles, launch.across](
            x,
            _as_rows(shortcut) if shortcut is not None else x,
            stats,
            y,
            *launch.rows_columns_slots[:2],
            layout.views,
            ADDED=added,
            RELU=relu,
            **launch.tile,
        )
        ctx.set_materialize_grads(False)
        # γ and β are in `stats`; they are saved only so that a second derivative by them is refused.
        ctx.save_for_backward(x, y if added else None, stats, weight, bias, other_weight, other_bias)
        ctx.launch, ctx.relu = launch, relu
        return y, y.view_as(y)

    @staticmethod
    @refuse_double_backward
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        x, y, stats, *_ = ctx.saved_tensors
        launch, layout, added = ctx.launch, ctx.launch.layout, y is not None
        given = [_as_rows(gradient) for gradient in gradients if gradient is not None]
        if not given:
            return (None,) * len(ctx.needs_input_grad)
        d_shortcut = torch.empty_like(x) if added else None
        sums, slopes = launch.floats(2, launch.slots), launch.floats(2, layout.views)
        kernels.gradient_sums[launch.slots, launch.across](
            given[0],
            given[-1],
            x,
            y if added else x,
            d_shortcut if added else x,
            stats,
            sums,
            *launch.rows_columns_slots,
            layout.views,
            TWO=len(given) > 1,
            ADDED=added,
            RELU=ctx.relu,
            **launch.loop,
        )
        d_parameters = launch.floats(4)
        kernels.slopes[launch.blocks](
            sums, stats, slopes, d_parameters, *launch.rows_columns_slots, *layout, **launch.table
        )
        if d_shortcut is not None:  # the sum of both gradients, taken back through the ReLU
            given = [d_shortcut]
        dx = torch.empty_like(x)
        kernels.gradient[launch.tiles, launch.across](
            given[0],
            given[-1],
            x,
            stats,
            slopes,
            dx,
            *launch.rows_columns_slots[:2],
            layout.views,
            TWO=len(given) > 1,
            RELU=ctx.relu and not added,
            **launch.tile,
        )
        wanted = ctx.needs_input_grad[2:6]
        changes = [change if want else None for change, want in zip(d_parameters, wanted, strict=True)]
        return dx, d_shortcut, *changes, *[None] * 4


def _values(layer: nn.BatchNorm2d) -> tuple[Any, ...]:
    return layer.weight, layer.bias, layer.running_mean, layer.running_var, layer.momentum or 0.0


def _as_rows(x: Tensor) -> Tensor:
    """Return x with the channels of each position side by side in memory."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x.contiguous()


class Launch:
    """Sizes of one call, and the grids and constants with which its kernels are launched."""

    def __init__(self, x: Tensor, layout: Layout) -> None:
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
            # The maximum over layers, so that all share one kernel: compiling another one takes time.
            "SLOTS": triton.next_power_of_2(layout.together * max(1, PROGRAMS // layout.views)),
            "WIDTH": kernels.BLOCK,
            "num_warps": TABLE_WARPS,
        }

    def floats(self, *sizes: int) -> Tensor:
        """Return uninitialised memory for numbers per channel, (*sizes, C)."""
        return torch.empty(*sizes, self.channels, dtype=torch.float32, device=self.device)
