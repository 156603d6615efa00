"""Batch norm per view: separate statistics for each view, and a second set of layers for adversarial views.

A step stacks its views into one batch, so that convolutions run once over all of them; only batch norm needs
to know where one view ends and the next begins.

Shapes: V views of B images, C channels, G groups of views.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from intnacl.errors import InputError
from intnacl.losses.gather import sum_over_ranks

Group = tuple[int, bool]
"""Consecutive views that share statistics: the number of views, and whether they are adversarial."""

EqualPair = tuple[Tensor, Tensor]
"""The same tensor twice, once for each of its two consumers: the next convolution and the shortcut.

With one tensor, autograd would add the gradients of both consumers in a separate pass over memory. With two,
both reach the backward pass of the kernel that made them, which adds them as it reads them.
"""

Normalize = Callable[[Tensor, Sequence[nn.BatchNorm2d], Sequence[Group]], Tensor]
"""A function that normalises a training batch, each group by its own statistics and with the parameters of
its layer, and updates that layer's running statistics: `built_in` or `over_ranks`."""


class Kernel(Protocol):
    """A fused kernel for batch norm, shortcut and ReLU: see `kernels.batchnorm.norm_relu`."""

    def __call__(
        self,
        x: Tensor,
        clean: nn.BatchNorm2d,
        adversarial: nn.BatchNorm2d | None,
        groups: Sequence[Group],
        *,
        relu: bool,
        shortcut: Tensor | None = None,
    ) -> EqualPair: ...


M = TypeVar("M", bound=nn.Module)


class ViewBatchNorm(nn.BatchNorm2d):
    """Batch norm by groups of views. In eval mode, and with one clean group, it is `nn.BatchNorm2d`.

    y = γ (x − μ_g) / sqrt(σ²_g + ε) + β with the mean and variance of its group g; running statistics are
    updated by one group after the other. Adversarial groups have their own γ, β and running statistics.

    Attributes:
        groups: How a batch is stacked; set by `stacked`.
        normalize: How a training batch is normalised.
        kernel: Used instead of `normalize` where shape and dtype allow; set by `kernels.fuse`.
        after: Applied to y: the activation that the layer ends in, or the identity.
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
        self.groups: tuple[Group, ...] = ((1, False),)
        self.normalize: Normalize = over_ranks if sync else built_in
        self.kernel: Kernel | None = None
        self.after: nn.Module = nn.Identity()

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept images and vectors alike."""

    def forward(self, x: Tensor) -> Tensor:
        """(V·B, C, …) -> the same shape."""
        second = self if self.adversarial is None else self.adversarial
        layers = [second if adversarial else self for _, adversarial in self.groups]
        if self.momentum is None:  # set by `torch.optim.swa_utils.update_bn`: the mean over all batches
            y = super().forward(x)
        elif not self.training:
            y = _batch_norm(x, layers[0], training=False)
        elif (kernel := self._kernel_for(x)) is not None:
            y, _ = kernel(x, self, self.adversarial, self.groups, relu=False)
        else:
            y = self.normalize(x, layers, self.groups)
        return self.after(y)  # type: ignore[no-any-return]

    def relu(self, x: Tensor, shortcut: Tensor | None) -> EqualPair:
        """Return max(normalised x + shortcut, 0)."""
        if (kernel := self._kernel_for(x)) is not None:
            return kernel(x, self, self.adversarial, self.groups, relu=True, shortcut=shortcut)
        return _relu(self(x), shortcut)

    def _kernel_for(self, x: Tensor) -> Kernel | None:
        """Return the kernel if it supports x: a training batch of several values per view and channel."""
        if self.kernel is None or not self.training or self.momentum is None:
            return None
        several = x.numel() > x.shape[1] * sum(views for views, _ in self.groups)
        known = x.dtype in (torch.bfloat16, torch.float16, torch.float32) and x.numel() < 2**31
        return self.kernel if several and known else None


def norm_relu(norm: nn.Module, x: Tensor, shortcut: Tensor | None = None) -> EqualPair:
    """Return max(norm(x) + shortcut, 0), computed by one kernel if the layer has one."""
    return norm.relu(x, shortcut) if isinstance(norm, ViewBatchNorm) else _relu(norm(x), shortcut)


def _relu(x: Tensor, shortcut: Tensor | None) -> EqualPair:
    x = x if shortcut is None else x + shortcut
    # Compiled, the gradient of clamp needs x, which is available anyway, and that of relu needs the result.
    y = x.clamp(min=0) if torch.compiler.is_compiling() else torch.relu(x)
    return y, y


def built_in(x: Tensor, layers: Sequence[nn.BatchNorm2d], groups: Sequence[Group]) -> Tensor:
    """Apply torch's batch norm group by group; when compiled, all groups at once if they have one size."""
    views = [count for count, _ in groups]
    if min(views) * x.numel() <= sum(views) * x.shape[1]:
        raise InputError(
            "batch norm gets one value per channel, which has no variance: raise --batch-size, or take a "
            "smaller encoder or larger images."
        )
    if torch.compiler.is_compiling() and len(views) > 1 and len(set(views)) == 1:
        return all_groups(x, layers)
    return _by_group(x, layers, groups, _batch_norm)


def all_groups(x: Tensor, layers: Sequence[nn.BatchNorm2d]) -> Tensor:
    """Normalise all groups at once, for the compiler: one reduction and one pass over x.

    var = E (x − r)² − (E x − r)² in float32, with r a channel's first value, so that a large mean does not
    cancel the digits of a small variance; faster than two passes or Welford's recurrence.
    """
    size = (len(layers), -1, *x.shape[1:])
    axes = (1, *range(3, x.ndim + 1))
    column = (len(layers), 1, x.shape[1], *[1] * (x.ndim - 2))
    weight_GC = torch.stack([layer.weight for layer in layers])
    bias_GC = torch.stack([layer.bias for layer in layers])
    wide = x.view(size).to(weight_GC.dtype)
    first_GC = wide[:, 0].reshape(len(layers), x.shape[1], -1)[:, :, 0].detach()
    shifted = wide - first_GC.view(column)
    mean_GC = shifted.mean(axes)
    var_GC = (shifted.square().mean(axes) - mean_GC.square()).clamp(min=0)
    count = x.numel() // (len(layers) * x.shape[1])
    for layer, mean_C, var_C in zip(layers, (first_GC + mean_GC).detach(), var_GC.detach(), strict=True):
        _move_statistics(layer, mean_C, var_C, count)
    scale_GC = weight_GC * (var_GC + layers[0].eps).rsqrt()
    y = shifted * scale_GC.view(column) + (bias_GC - mean_GC * scale_GC).view(column)
    return y.to(x.dtype).view(x.shape)


def over_ranks(x: Tensor, layers: Sequence[nn.BatchNorm2d], groups: Sequence[Group]) -> Tensor:
    """Apply batch norm with mean and variance over all ranks; on one process this is `built_in`."""
    if not dist.is_initialized():
        return built_in(x, layers, groups)
    return _by_group(x, layers, groups, _batch_norm_over_ranks)


def _by_group(
    x: Tensor,
    layers: Sequence[nn.BatchNorm2d],
    groups: Sequence[Group],
    norm: Callable[[Tensor, nn.BatchNorm2d], Tensor],
) -> Tensor:
    share = len(x) // sum(views for views, _ in groups)
    parts = torch.split(x, [views * share for views, _ in groups])
    done = [norm(part, layer) for part, layer in zip(parts, layers, strict=True)]
    return done[0] if len(done) == 1 else torch.cat(done)


def _batch_norm(x: Tensor, layer: nn.BatchNorm2d, training: bool = True) -> Tensor:
    momentum = layer.momentum or 0.0
    statistics = (layer.running_mean, layer.running_var)
    return F.batch_norm(x, *statistics, layer.weight, layer.bias, training, momentum, layer.eps)


def _batch_norm_over_ranks(x: Tensor, layer: nn.BatchNorm2d) -> Tensor:
    """Apply batch norm over all ranks, to which gradients flow through the mean and the variance."""
    axes = [axis for axis in range(x.ndim) if axis != 1]
    column = [1, -1] + [1] * (x.ndim - 2)
    wide = x.to(layer.weight.dtype)
    count = dist.get_world_size() * x.numel() // x.shape[1]
    mean_C = sum_over_ranks(wide.sum(axes)) / count
    centred = wide - mean_C.view(column)
    var_C = sum_over_ranks(centred.square().sum(axes)) / count
    _move_statistics(layer, mean_C.detach(), var_C.detach(), count)
    y: Tensor = centred * (layer.weight * (var_C + layer.eps).rsqrt()).view(column) + layer.bias.view(column)
    return y.to(x.dtype)


def _move_statistics(layer: nn.BatchNorm2d, mean_C: Tensor, var_C: Tensor, count: int) -> None:
    """Move the running statistics towards those of `count` values a channel; the variance is unbiased."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    layer.running_mean.lerp_(mean_C, layer.momentum or 0.0)
    layer.running_var.lerp_(var_C * count / (count - 1), layer.momentum or 0.0)


@contextmanager
def stacked(model: nn.Module, groups: Sequence[Group]) -> Iterator[None]:
    """Declare inside the block how batches that go through `model` are stacked; restore it afterwards.

    `stacked(model, [(1, True)])` is for one adversarial view: the second set of layers is trained, if there
    is one, and the clean statistics do not change.

    Args:
        model: Any module; every `ViewBatchNorm` in it sees the groups.
        groups: From the first view of the batch to the last; each is (number of views, adversarial or not).

    Raises:
        InputError: With adversarial views, if another batch norm of `model` would mix them with clean ones.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    norms = [layer for layer in layers if isinstance(layer, ViewBatchNorm)]
    if any(adversarial for _, adversarial in groups):
        with_second = [norm for norm in norms if norm.adversarial is not None]
        own = {*with_second, *(norm.adversarial for norm in with_second)}
        for layer in layers:
            if layer not in own and layer.training and layer.track_running_stats:
                name = next(name for name, module in model.named_modules() if module is layer)
                raise InputError(
                    f"layer {name!r} is a {type(layer).__name__}, whose statistics adversarial views would "
                    "change: call intnacl.models.batchnorm.convert(model) first."
                )
    before = [norm.groups for norm in norms]
    try:
        for norm in norms:
            norm.groups = tuple(groups)
        yield
    finally:
        for norm, own_groups in zip(norms, before, strict=True):
            norm.groups = own_groups


def convert(module: M, *, adversarial: bool = True, momentum: float = 0.01, sync: bool = False) -> M:
    """Replace every batch norm below `module` by a `ViewBatchNorm`, in place, and return `module`.

    The new layer takes over ε, momentum, γ, β and running statistics, for both sets, and the activation that
    timm's layers end in. A layer that is used in several places stays shared, a `SyncBatchNorm` stays
    synchronised, and a `ViewBatchNorm` is left unchanged.

    Args:
        module: Any module that is not a batch norm itself.
        adversarial: Add a second set of layers for adversarial views.
        momentum: Momentum of the running statistics of that second set.
        sync: Take the statistics over all ranks.
    """

    def view_norm(old: _BatchNorm) -> ViewBatchNorm:
        if old.momentum is None or old.running_mean is None:
            raise InputError(
                "a batch norm has momentum=None, which means statistics over all batches so far, or "
                "track_running_stats=False: give it a momentum, such as 0.1, and statistics."
            )
        new = ViewBatchNorm(
            old.num_features,
            adversarial=adversarial,
            adversarial_momentum=momentum,
            sync=sync or isinstance(old, nn.SyncBatchNorm),
            eps=old.eps,
            device=old.running_mean.device,
            dtype=old.running_mean.dtype,
        ).train(old.training)
        new.momentum, new.after = old.momentum, _activation(old)
        for layer in (new, new.adversarial):
            if layer is not None:
                layer.load_state_dict(old.state_dict(), strict=False)
                layer.weight.requires_grad_(old.affine and old.weight.requires_grad)
                layer.bias.requires_grad_(old.affine and old.bias.requires_grad)
        return new

    _replace(module, view_norm)
    return module


def remove_norms(module: nn.Module) -> None:
    """Remove every batch norm below `module`; of timm's, the activation that they end in remains."""
    _replace(module, _activation)


def _replace(module: nn.Module, new: Callable[[_BatchNorm], nn.Module]) -> None:
    """Replace every batch norm below `module`, except a `ViewBatchNorm` and those inside another one."""
    if isinstance(module, _BatchNorm) and not isinstance(module, ViewBatchNorm):
        raise InputError(
            "the module is a batch norm itself, which cannot be replaced: put it in a Sequential."
        )
    parents = list(module.modules())
    norms = [part for part in parents if isinstance(part, _BatchNorm)]
    inside = {part for norm in norms for part in norm.modules() if part is not norm}
    new_of = {old: new(old) for old in norms if old not in inside and not isinstance(old, ViewBatchNorm)}
    for parent in parents:
        for name, child in parent._modules.items():  # named_children() skips a child's second name
            if child in new_of:
                setattr(parent, name, new_of[child])


def _activation(old: nn.Module) -> nn.Module:
    """Return the dropout and activation that timm's batch norms end in, or the identity."""
    parts = [getattr(old, name, None) for name in ("drop", "act")]
    found = [part for part in parts if isinstance(part, nn.Module) and not isinstance(part, nn.Identity)]
    return nn.Sequential(*found) if found else nn.Identity()
