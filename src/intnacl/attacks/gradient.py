"""FGSM and PGD in the ℓ∞ ball of radius eps around x, inside the box [0, 1], on any loss.

Shapes: B samples, C classes; x: (B, 3, H, W) pixels in [0, 1]; y: (B,) labels. The model maps pixels to
logits (B, C), so its normalisation is its own business and eps always counts in pixels.

The attacks differentiate with respect to x alone: parameters' `.grad`, the model's mode and the caller's
grad mode stay as they were. They run in the dtype of x, float32 or float64, with autocast off, because half
precision rounds small input gradients to zero and so reports robustness that is not there.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from intnacl.attacks.training_view import Model
from intnacl.errors import InputError, InputWarning, check_eps, check_floats

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(logits_BC: Tensor, y_B: Tensor) -> Tensor:
    """−log softmax(logits)_y of each sample: (B, C), (B,) -> (B,)."""
    return functional.cross_entropy(logits_BC, y_B, reduction="none")


def input_gradient(objective: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """∇ₓ Σ objective(x), for an objective that is a scalar or one number per sample; same shape as x.

    The sum over samples keeps their gradients apart, so the sign does not depend on the batch size.
    """
    with torch.enable_grad():
        x = x.detach().clone().requires_grad_()
        (gradient,) = torch.autograd.grad(objective(x).sum(), x)
    _check_numbers("the gradient of the loss", gradient)
    return gradient


def fgsm(
    model: Model, x: Tensor, y: Tensor, eps: float, *, loss: Loss = cross_entropy, clamp: bool = True
) -> Tensor:
    """x + eps·sign ∇ₓ loss(model(x), y), one step from x itself (Goodfellow et al. 2015).

    `clamp=False` leaves the box [0, 1], as the paper's own attack does. `loss` maps (logits, y) to one number
    per sample, or to their mean or sum: the sign is the same.
    """
    _check_inputs(x, y, eps)
    _warn_of_train_mode(model)
    if clamp:
        _check_box(x)
    return along(x, gradient_sign(model, x, y, loss=loss), eps, clamp=clamp)


def gradient_sign(model: Model, x: Tensor, y: Tensor, *, loss: Loss = cross_entropy) -> Tensor:
    """sign ∇ₓ loss(model(x), y), shape of x: FGSM's direction, the same for every eps."""
    with plain_gradients(x.device):
        x, y = x.detach().clone(), y.clone()
        return input_gradient(lambda x: loss(model(x), y), x).sign()


def along(x: Tensor, sign: Tensor, eps: float, *, clamp: bool = True) -> Tensor:
    """x + eps·sign, cut to the box [0, 1] if `clamp`."""
    adversarial = x.detach() + eps * sign
    return adversarial.clamp(0, 1) if clamp else adversarial


def pgd(
    model: Model,
    x: Tensor,
    y: Tensor,
    eps: float,
    step_size: float,
    steps: int,
    restarts: int,
    *,
    loss: Loss = cross_entropy,
    random_start: bool = True,
    stop_when_fooled: bool = True,
    generator: torch.Generator | None = None,
    batch_size: int | None = None,
) -> Tensor:
    """x ← Π(x + step_size·sign ∇ₓ loss), Π the projection onto ball and box (Madry et al. 2018).

    Each restart begins at a uniform draw from the ball (at x if `random_start` is off). A sample keeps the
    worst of x itself and the restarts' ends: a fooled one if there is any, else the one of largest loss. So
    accuracy never ends above clean accuracy, and eps = 0 gives x back. `stop_when_fooled` freezes a sample at
    its first success; a step above 2·eps jumps from corner to corner of the ball and would lose it again.

    `loss` as in `fgsm`; one that returns a scalar must be a mean or sum over samples, since restarts are
    compared sample by sample. Float targets (embeddings, say) know no "fooled", only the loss.

    `batch_size` samples go through the model at once (None: all). Give many samples and a batch size rather
    than a batch at a time: each step then fills its batches with those that still stand.
    """
    _check_inputs(x, y, eps)
    _warn_of_train_mode(model)
    _check_box(x)
    _check_schedule(step_size, steps, restarts)
    if batch_size is not None and batch_size < 1:
        raise InputError(f"batch_size={batch_size!r} must be at least 1, or None for all samples at once.")
    target = _Target(model, loss, batch_size or max(1, len(x)))
    with plain_gradients(x.device):
        x, y = x.detach().clone(), y.clone()
        low, high = (x - eps).clamp(min=0), (x + eps).clamp(max=1)
        worst, worst_score = x.clone(), target.scores(x, y)
        for _ in range(restarts):
            start = (x + eps * _uniform_like(x, generator)).clamp(low, high) if random_start else x
            standing = worst_score.isposinf().logical_not().nonzero().squeeze(1)
            if len(standing) == 0:
                break
            box = (low[standing], high[standing])
            end = target.climb(start[standing], y[standing], box, step_size, steps, stop_when_fooled)
            score = target.scores(end, y[standing])
            better = score > worst_score[standing]
            worst[standing[better]], worst_score[standing[better]] = end[better], score[better]
    return worst


class _Target(NamedTuple):
    """What PGD attacks: a model, the loss that is to grow, and how many samples go through it at once."""

    model: Model
    loss: Loss
    size: int

    def climb(
        self, x: Tensor, y: Tensor, box: tuple[Tensor, Tensor], step_size: float, steps: int, stop: bool
    ) -> Tensor:
        """One restart's end. With `stop`, fooled samples stay where they are and cost nothing any more."""
        low, high = box
        moving = torch.arange(len(x), device=x.device)
        for _ in range(steps):
            parts = [self._step(x[rows], y[rows], step_size) for rows in torch.split(moving, self.size)]
            moved, fooled = (torch.cat(part) for part in zip(*parts, strict=True))
            if stop:
                moved, moving = moved[~fooled], moving[~fooled]
            x[moving] = moved.clamp(low[moving], high[moving])
            if len(moving) == 0:
                break
        return x

    def _step(self, x: Tensor, y: Tensor, step_size: float) -> tuple[Tensor, Tensor]:
        """x + step_size·sign ∇ₓ loss, and which samples were fooled before it, from the same forward pass."""
        fooled = torch.zeros(len(x), dtype=torch.bool, device=x.device)

        def _objective(x: Tensor) -> Tensor:
            logits = self.model(x)
            fooled.copy_(_is_fooled(logits.detach(), y))
            return self.loss(logits, y)

        return x + step_size * input_gradient(_objective, x).sign(), fooled

    def scores(self, x: Tensor, y: Tensor) -> Tensor:
        """How bad each candidate is, (B,): its loss, or +inf once fooled."""
        batches = zip(torch.split(x, self.size), torch.split(y, self.size), strict=True)
        return torch.cat([self._score(*batch) for batch in batches])

    def _score(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            logits = self.model(x)
            losses = self.loss(logits, y)
            if losses.ndim == 0:
                losses = torch.stack([self.loss(logits[i : i + 1], y[i : i + 1]) for i in range(len(x))])
        _check_numbers("the loss", losses)
        return losses.masked_fill(_is_fooled(logits, y), torch.inf)


def _is_fooled(logits: Tensor, y: Tensor) -> Tensor:
    if y.is_floating_point():
        return torch.zeros(len(y), dtype=torch.bool, device=y.device)
    return logits.argmax(dim=1) != y


def _uniform_like(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform in [−1, 1), drawn where the generator lives: one seed gives one draw on any device."""
    device = x.device if generator is None else generator.device
    return torch.rand(x.shape, generator=generator, device=device, dtype=x.dtype).to(x.device) * 2 - 1


@contextmanager
def plain_gradients(device: torch.device) -> Iterator[None]:
    """Autocast off, and gradients possible even for a caller in inference mode."""
    with torch.inference_mode(False), torch.autocast(device.type, enabled=False):
        yield


def _check_inputs(x: Tensor, y: Tensor, eps: float) -> None:
    check_floats("attacks need", x)
    if x.dtype.itemsize < 4:
        raise InputError(
            f"x has dtype {x.dtype}, whose rounding would leave the ball of a small eps: give float32 pixels "
            "and let the model convert them."
        )
    if len(x) != len(y):
        raise InputError(f"{len(x)} images but {len(y)} labels; attacks need one label per image.")
    check_eps(eps)


def _warn_of_train_mode(model: Model) -> None:
    """Warn where a sample's logits depend on the rest of its batch or on chance: robustness is overrated."""
    parts = model.named_modules() if isinstance(model, nn.Module) else ()
    moving = [
        name
        for name, part in parts
        if part.training and (isinstance(part, _BatchNorm) or (isinstance(part, _DropoutNd) and part.p > 0))
    ]
    if moving:
        warnings.warn(
            f"the attacked model is in train mode (layer {moving[0]!r} first), where an image's logits "
            "change from batch to batch: accuracy under attack comes out too high. Call model.eval() first.",
            InputWarning,
            stacklevel=3,
        )


def _check_box(x: Tensor) -> None:
    """Raise if x lies outside [0, 1]: cut to the box, it would move by far more than eps."""
    low, high = torch.aminmax(x.detach()) if x.numel() else (0, 1)
    if not (low >= 0 and high <= 1):
        raise InputError(
            f"x has values from {low:.4g} to {high:.4g}; attacks need pixels in [0, 1]: normalise inside the "
            "model, as nn.Sequential(normalise, model) does."
        )


def _check_numbers(what: str, values: Tensor) -> None:
    """Raise if any of `values`, samples first, is NaN: such a sample would pass for fooled."""
    bad_B = values.isnan().flatten(1).any(1) if values.ndim > 1 else values.isnan()
    if bad_B.any():
        raise InputError(
            f"{what} is NaN for {int(bad_B.sum())} of {len(values)} images, which would count as fooled: the "
            "model has diverged, overflows in its dtype, or has no derivative there, as sqrt has none at 0."
        )


def _check_schedule(step_size: float, steps: int, restarts: int) -> None:
    if not step_size >= 0:
        raise InputError(f"step_size={step_size!r} must not be negative; eps / 4 is a good choice.")
    if steps < 1 or restarts < 1:
        raise InputError(f"steps={steps!r} and restarts={restarts!r} must both be at least 1.")
