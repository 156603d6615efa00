"""Batch norm that knows views: separate statistics for each, and a second set of layers for adversarial ones.

A step stacks its views to one batch, so that convolutions run once over all of them; only batch norm must
know where one view ends and the next begins.

Shapes: V views of B images, C channels.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from intnacl.errors import InputError
from intnacl.losses.gather import sum_over_ranks

Groups = tuple[tuple[int, bool], ...]
"""Runs of views that share statistics: (number of views, whether they are adversarial)."""
Twice = tuple[Tensor, Tensor]
"""One tensor under two names, for two users: where kernels allow it, their gradients meet at no cost."""
Normalize = Callable[[Tensor, nn.BatchNorm2d], Tensor]
M = TypeVar("M", bound=nn.Module)


class ViewBatchNorm(nn.BatchNorm2d):
    """Batch norm by groups of views. In eval mode, and with one clean group, it is `nn.BatchNorm2d`.

    y = γ (x − μ_g) / sqrt(σ²_g + ε) + β with the mean and variance of its group g; running statistics take
    the groups one after the other. Adversarial groups have γ, β and running statistics of their own.
    `after` is what the layer does to y: nothing, unless it ends in an activation. `kernels` says
    whether a GPU trains with the kernels of `fused_norm`.
    """

    def __init__(
        self,
        features: int,
        *,
        adversarial: bool,
        adversarial_momentum: float,
        sync: bool,
        eps: float = 1e-5,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(features, eps, device=device, dtype=dtype)
        self.adversarial = (
            nn.BatchNorm2d(features, eps, adversarial_momentum, device=device, dtype=dtype)
            if adversarial
            else None
        )
        self.sync = sync
        self.after: nn.Module = nn.Identity()
        self.groups: Groups = ((1, False),)
        self.kernels = False

    def _check_input_dim(self, input: Tensor) -> None:
        """Images and vectors alike."""

    def forward(self, x: Tensor) -> Tensor:
        """(V·B, C, …) -> the same shape."""
        y: Tensor = self.after(self._by_kernels(x)[0] if self._suits_kernels(x) else self._normalized(x))
        return y

    def relu(self, x: Tensor, shortcut: Tensor | None) -> Twice:
        """max(normalised x + shortcut, 0)."""
        if self._suits_kernels(x):
            return self._by_kernels(x, relu=True, shortcut=shortcut)
        return _relu(self(x), shortcut)

    def _normalized(self, x: Tensor) -> Tensor:
        if self.momentum is None:  # as `torch.optim.swa_utils.update_bn` sets it: the mean over all batches
            return super().forward(x)
        layers = [self._layer(attacked) for _, attacked in self.groups]
        if not self.training:
            return _built_in(x, layers[0], training=False)
        if self._synced:
            return self._by_parts(x, layers, _over_ranks)
        self._check_several(x)
        if (
            torch.compiler.is_compiling()
            and len(layers) > 1
            and len({views for views, _ in self.groups}) == 1
        ):
            return _all_groups(x, layers)
        return self._by_parts(x, layers, _built_in)

    @property
    def fusible(self) -> bool:
        """Whether `fused_norm` can train it: on a GPU, in float32, with statistics of this rank alone."""
        return self.weight.is_cuda and self.weight.dtype == torch.float32 and not self._synced

    @property
    def _synced(self) -> bool:
        return self.sync and dist.is_initialized()

    def _suits_kernels(self, x: Tensor) -> bool:
        fits = x.is_cuda and x.dtype in (torch.bfloat16, torch.float16, torch.float32)
        # One value a view and channel has no variance, as `_check_several` says.
        several = x.numel() > x.shape[1] * sum(views for views, _ in self.groups)
        moves = self.training and self.momentum is not None  # else see `_normalized`
        return self.kernels and moves and not self._synced and fits and several and x.numel() < 2**31

    def _check_several(self, x: Tensor) -> None:
        views = [views for views, _ in self.groups]
        if min(views) * x.numel() <= sum(views) * x.shape[1]:
            raise InputError(
                "batch norm gets one value a channel, which has no variance: raise --batch-size, or take a "
                "smaller encoder or larger images."
            )

    def _by_kernels(self, x: Tensor, relu: bool = False, shortcut: Tensor | None = None) -> Twice:
        from intnacl.models.kernels.batchnorm import norm_relu

        return norm_relu(x, self, self.adversarial, self.groups, relu=relu, shortcut=shortcut)

    def _layer(self, attacked: bool) -> nn.BatchNorm2d:
        return self.adversarial if attacked and self.adversarial is not None else self

    def _by_parts(self, x: Tensor, layers: list[nn.BatchNorm2d], normalize: Normalize) -> Tensor:
        share = len(x) // sum(views for views, _ in self.groups)
        parts = torch.split(x, [views * share for views, _ in self.groups])
        done = [normalize(part, layer) for part, layer in zip(parts, layers, strict=True)]
        return done[0] if len(done) == 1 else torch.cat(done)


def norm_relu(norm: nn.Module, x: Tensor, shortcut: Tensor | None = None) -> Twice:
    """max(norm(x) + shortcut, 0), by one kernel where there is one."""
    return norm.relu(x, shortcut) if isinstance(norm, ViewBatchNorm) else _relu(norm(x), shortcut)


def _relu(x: Tensor, shortcut: Tensor | None) -> Twice:
    """The compiler takes clamp's gradient from x, which it has at hand, relu's from the result."""
    x = x if shortcut is None else x + shortcut
    y = x.clamp(min=0) if torch.compiler.is_compiling() else torch.relu(x)
    return y, y


def _built_in(x: Tensor, layer: nn.BatchNorm2d, training: bool = True) -> Tensor:
    momentum = layer.momentum or 0.0
    statistics = (layer.running_mean, layer.running_var)
    return F.batch_norm(x, *statistics, layer.weight, layer.bias, training, momentum, layer.eps)


def _all_groups(x: Tensor, layers: list[nn.BatchNorm2d]) -> Tensor:
    """All groups at once, for the compiler: one reduction and one pass over x, however many groups.

    var = E (x − r)² − (E x − r)² in float32, with r a channel's first value, so that a large mean does not
    cancel the digits of a small variance; faster than two passes or Welford's recurrence.
    """
    size = (len(layers), -1, *x.shape[1:])
    axes = (1, *range(3, x.ndim + 1))
    column = (len(layers), 1, x.shape[1], *[1] * (x.ndim - 2))
    weight_GC, bias_GC = (
        torch.stack([getattr(layer, name) for layer in layers]) for name in ("weight", "bias")
    )
    wide = x.view(size).to(weight_GC.dtype)
    first_GC = wide[:, 0].reshape(len(layers), x.shape[1], -1)[:, :, 0].detach()
    shifted = wide - first_GC.view(column)
    mean_GC = shifted.mean(axes)
    var_GC = (shifted.square().mean(axes) - mean_GC.square()).clamp(min=0)
    count = x.numel() // (len(layers) * x.shape[1])
    _update(layers, (first_GC + mean_GC).detach(), var_GC.detach(), count)
    scale_GC = weight_GC * (var_GC + layers[0].eps).rsqrt()
    y = shifted * scale_GC.view(column) + (bias_GC - mean_GC * scale_GC).view(column)
    return y.to(x.dtype).view(x.shape)


def _update(layers: list[nn.BatchNorm2d], mean_GC: Tensor, var_GC: Tensor, count: int) -> None:
    """Move the running statistics, unbiased, one group after the other."""
    for layer, mean_C, var_C in zip(layers, mean_GC, var_GC, strict=True):
        assert layer.running_mean is not None
        assert layer.running_var is not None
        layer.running_mean.lerp_(mean_C, layer.momentum or 0.0)
        layer.running_var.lerp_(var_C * count / (count - 1), layer.momentum or 0.0)


def convert(module: M, *, adversarial: bool = True, momentum: float = 0.01, sync: bool = False) -> M:
    """Replace every batch norm below `module` by a `ViewBatchNorm`, if it is none already; returns `module`.

    It has ε, momentum, γ, β and statistics of the old one, for both sets, and the activation that timm's end
    in. `momentum` is that of the layers for adversarial views; a `SyncBatchNorm` stays synchronised, and one
    that is used in several places stays one.
    """
    _replace(module, lambda old: _view_norm(old, adversarial, momentum, sync))
    return module


def remove_norms(module: nn.Module) -> None:
    """Replace every batch norm below `module` by nothing, or by the activation that timm's end in."""
    _replace(module, _after)


def _replace(module: nn.Module, new: Callable[[_BatchNorm], nn.Module]) -> None:
    if isinstance(module, _BatchNorm) and not isinstance(module, ViewBatchNorm):
        raise InputError(
            "the module is a batch norm itself, which cannot be replaced: put it in a Sequential."
        )
    parts = list(module.modules())
    norms = [part for part in parts if isinstance(part, _BatchNorm)]
    inside = {part for norm in norms for part in norm.modules() if part is not norm}
    new_of = {old: new(old) for old in norms if old not in inside and not isinstance(old, ViewBatchNorm)}
    for part in parts:
        for name, child in part._modules.items():  # named_children() passes over a child's second name
            if child in new_of:
                setattr(part, name, new_of[child])


def _view_norm(old: _BatchNorm, adversarial: bool, momentum: float, sync: bool) -> ViewBatchNorm:
    if old.momentum is None or old.running_mean is None:
        raise InputError(
            "a batch norm has momentum=None, which means statistics over all batches so far, or "
            "track_running_stats=False: give it a momentum, such as 0.1, and statistics."
        )
    new = ViewBatchNorm(
        old.num_features, adversarial=adversarial, adversarial_momentum=momentum, eps=old.eps,
        sync=sync or isinstance(old, nn.SyncBatchNorm),
        device=old.running_mean.device, dtype=old.running_mean.dtype,
    ).train(old.training)  # fmt: skip
    new.momentum, new.after = old.momentum, _after(old)
    for layer in (new, new.adversarial):
        if layer is not None:
            layer.load_state_dict(old.state_dict(), strict=False)
            layer.weight.requires_grad_(old.affine and old.weight.requires_grad)
            layer.bias.requires_grad_(old.affine and old.bias.requires_grad)
    return new


def _after(old: nn.Module) -> nn.Module:
    parts = [getattr(old, name, None) for name in ("drop", "act")]
    found = [part for part in parts if isinstance(part, nn.Module) and not isinstance(part, nn.Identity)]
    return nn.Sequential(*found) if found else nn.Identity()


def arrange(module: nn.Module, groups: Groups) -> None:
    """Tell every batch norm below `module` how the next batches are stacked."""
    for layer in module.modules():
        if isinstance(layer, ViewBatchNorm):
            layer.groups = groups


@contextmanager
def attacked(module: nn.Module) -> Iterator[None]:
    """Inside, what goes through `module` is one adversarial view; afterwards, one clean view again."""
    _check_converted(module)
    arrange(module, ((1, True),))
    try:
        yield
    finally:
        arrange(module, ((1, False),))


def _check_converted(module: nn.Module) -> None:
    """Raise where a batch norm would mix the statistics of clean and adversarial views."""
    seconds = {layer.adversarial for layer in module.modules() if isinstance(layer, ViewBatchNorm)}
    for name, layer in module.named_modules():
        apart = layer in seconds or getattr(layer, "adversarial", None) is not None
        moves = isinstance(layer, _BatchNorm) and layer.training and layer.track_running_stats
        if moves and not apart:
            raise InputError(
                f"layer {name!r} is a {type(layer).__name__}, whose statistics adversarial views would "
                "change: call intnacl.models.batchnorm.convert(model) first."
            )


def use_kernels(module: nn.Module, on: bool) -> None:
    """Let every batch norm below `module` train with kernels of our own on a GPU, or with torch's."""
    for layer in module.modules():
        if isinstance(layer, ViewBatchNorm):
            layer.kernels = on


def _over_ranks(x: Tensor, layer: nn.BatchNorm2d) -> Tensor:
    """Batch norm whose mean and variance are those of all ranks' rows; gradients flow through both."""
    axes = [axis for axis in range(x.ndim) if axis != 1]
    column = [1, -1] + [1] * (x.ndim - 2)
    wide = x.to(layer.weight.dtype)
    count = dist.get_world_size() * x.numel() // x.shape[1]
    mean_C = sum_over_ranks(wide.sum(axes)) / count
    centred = wide - mean_C.view(column)
    var_C = sum_over_ranks(centred.square().sum(axes)) / count
    _update([layer], mean_C.detach()[None], var_C.detach()[None], count)
    y: Tensor = centred * (layer.weight * (var_C + layer.eps).rsqrt()).view(column) + layer.bias.view(column)
    return y.to(x.dtype)
