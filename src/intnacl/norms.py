"""Batch norm that knows of views: statistics a view, and a second set of layers for adversarial ones.

A step stacks its views to one batch, so that convolutions run once over all of them; only batch norm must
know where one view ends and the next begins.

Shapes: V views of B pictures, C channels.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

Groups = tuple[tuple[int, bool], ...]
"""Runs of views that share statistics: (number of views, whether they are adversarial)."""


class ViewBatchNorm(nn.BatchNorm2d):
    """Batch norm by groups of views. In eval mode, and with one clean group, it is `nn.BatchNorm2d`.

    y = γ (x − μ_g) / sqrt(σ²_g + ε) + β with the mean and variance of its group g; the running
    statistics take the groups one after the other. Adversarial groups have γ, β and running statistics of their own.
    """

    def __init__(self, features: int, *, adversarial: bool, momentum: float, sync: bool) -> None:
        super().__init__(features)
        self.adversarial = nn.BatchNorm2d(features, momentum=momentum) if adversarial else None
        self.sync = sync
        self.groups: Groups = ((1, False),)

    def _check_input_dim(self, input: Tensor) -> None:
        """Pictures and vectors alike."""

    def forward(self, x: Tensor) -> Tensor:
        """(V·B, C, …) -> the same shape."""
        if not self.training or len(self.groups) == 1:
            return self._normalize(x, self.groups[0][1])
        share = len(x) // sum(views for views, _ in self.groups)
        parts = torch.split(x, [views * share for views, _ in self.groups])
        return torch.cat(
            [self._normalize(part, attacked) for part, (_, attacked) in zip(parts, self.groups, strict=True)]
        )

    def _normalize(self, x: Tensor, attacked: bool) -> Tensor:
        layer: nn.BatchNorm2d = self.adversarial if attacked and self.adversarial is not None else self
        if self.training and self.sync and dist.is_initialized():
            return _over_ranks(x, layer)
        return F.batch_norm(
            x, layer.running_mean, layer.running_var, layer.weight, layer.bias, self.training,
            layer.momentum or 0.0, layer.eps,
        )  # fmt: skip


def convert(module: nn.Module, norm: str, **options: Any) -> None:
    """Replace every batch norm below `module` by a `ViewBatchNorm`, or by nothing if norm is "none"."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
            new = nn.Identity() if norm == "none" else ViewBatchNorm(child.num_features, **options)
            setattr(module, name, new)
        else:
            convert(child, norm, **options)


def arrange(module: nn.Module, groups: Groups) -> None:
    """Tell every batch norm below `module` how the next batches are stacked."""
    for layer in module.modules():
        if isinstance(layer, ViewBatchNorm):
            layer.groups = groups


def _over_ranks(x: Tensor, layer: nn.BatchNorm2d) -> Tensor:
    """Batch norm whose mean and variance are those of all ranks' rows; gradients flow through both."""
    from torch.distributed.nn.functional import all_reduce

    axes = [axis for axis in range(x.ndim) if axis != 1]
    wide = x.double() if x.dtype == torch.float64 else x.float()
    count = wide.new_tensor([wide.numel() / wide.shape[1]])
    sums = torch.cat([wide.sum(axes), wide.square().sum(axes), count])
    total, total_square, n = all_reduce(sums).split([wide.shape[1], wide.shape[1], 1])  # type: ignore[no-untyped-call]
    mean, var = total / n, total_square / n - (total / n).square()
    with torch.no_grad():
        for running, new in ((layer.running_mean, mean), (layer.running_var, var * n / (n - 1))):
            assert running is not None
            running.lerp_(new.to(running.dtype), layer.momentum or 0.0)
    scale = layer.weight * (var + layer.eps).rsqrt()
    shape = [1, -1] + [1] * (x.ndim - 2)
    y: Tensor = wide * scale.view(shape) + (layer.bias - mean * scale).view(shape)
    return y.to(x.dtype)
