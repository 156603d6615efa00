"""FGSM and PGD in the ℓ∞ ball of radius eps around x, inside the box [0, 1], on any loss.

Shapes: B samples, C classes; x: (B, 3, H, W) pixels in [0, 1]; y: (B,) labels. The model maps pixels to
logits (B, C) and normalises inside, so that eps always counts in pixels.

The attacks differentiate with respect to x alone: parameters' `.grad`, the model's mode and the caller's
grad mode stay as they were. They run in the dtype of x, float32 or float64, with autocast off, because half
precision rounds small input gradients to zero and so reports robustness that is not there.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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


def input_gradient(
    model: Model, x: Tensor, y: Tensor, *, loss: Loss = cross_entropy
) -> tuple[Tensor, Tensor]:
    """Return ∇ₓ Σ loss(model(x), y), same shape as x, and the logits of the same forward pass.

    `loss` gives one number per sample, or their mean or sum. The sum over samples keeps their gradients
    apart, so the sign does not depend on the batch size.
    """
    with torch.enable_grad():
        x = x.detach().clone().requires_grad_()
        logits = model(x)
        (gradient,) = torch.autograd.grad(loss(logits, y).sum(), x)
    _check_numbers("the gradient of the loss", gradient)
    return gradient, logits.detach()


def fgsm(
    model: Model, x: Tensor, y: Tensor, eps: float, *, loss: Loss = cross_entropy, clamp: bool = True
) -> Tensor:
    """Return x + eps·sign ∇ₓ loss(model(x), y), one step from x itself (Goodfellow et al. 2015).

    `clamp=False` leaves the box [0, 1], as the paper's own attack does. `loss` maps (logits, y) to one number
    per sample, or to their mean or sum: the sign is the same.
    """
    _check(model, x, y, eps, box=clamp)
    return along(x, gradient_sign(model, x, y, loss=loss), eps, clamp=clamp)


def gradient_sign(model: Model, x: Tensor, y: Tensor, *, loss: Loss = cross_entropy) -> Tensor:
    """Return sign ∇ₓ loss(model(x), y), shape of x: FGSM's direction, the same for every eps."""
    with plain_gradients(x.device):
        gradient, _ = input_gradient(model, x.detach().clone(), y.clone(), loss=loss)
        return gradient.sign()


def along(x: Tensor, sign: Tensor, eps: float, *, clamp: bool = True) -> Tensor:
    """Return x + eps·sign, cut to the box [0, 1] if `clamp`."""
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
    """Iterate x ← Π(x + step_size·sign ∇ₓ loss), Π the projection onto ball and box (Madry et al. 2018).

    Each restart begins at a uniform draw from the ball (at x if `random_start` is off). A sample keeps the
    worst of x itself and the restarts' ends: a fooled one if there is any, else the one of largest loss. So
    accuracy never ends above clean accuracy, and eps = 0 gives x back. `stop_when_fooled` freezes a sample at
    its first success; a step above 2·eps jumps from corner to corner of the ball and would lose it again.

    `loss` is as in `fgsm`; one that returns a scalar must be a mean or sum over samples, since restarts are
    compared sample by sample. Float targets (embeddings, say) are never "fooled": only the loss counts.

    `batch_size` samples go through the model at once (None: all). Samples that are fooled leave the batches,
    so many samples with a batch size take fewer passes than one call per batch.
    """
    _check(model, x, y, eps)
    if not step_size >= 0:
        raise InputError(f"step_size={step_size!r} must not be negative; eps / 4 is a good choice.")
    if steps < 1 or restarts < 1:
        raise InputError(f"steps={steps!r} and restarts={restarts!r} must both be at least 1.")
    if batch_size is not None and batch_size < 1:
        raise InputError(f"batch_size={batch_size!r} must be at least 1, or None for all samples at once.")
    size = batch_size or max(1, len(x))
    with plain_gradients(x.device):
        x, y = x.detach().clone(), y.clone()
        low, high = (x - eps).clamp(min=0), (x + eps).clamp(max=1)
        worst, worst_score = x.clone(), _scores(model, loss, x, y, size)
        for _ in range(restarts):
            end = x.clone()
            if random_start:
                # Drawn where the generator lives, so that one seed gives one draw on any device.
                device = x.device if generator is None else generator.device
                draw = torch.rand(x.shape, generator=generator, device=device, dtype=x.dtype)
                end = (x + eps * (draw.to(x.device) * 2 - 1)).clamp(low, high)
            left = worst_score.isposinf().logical_not().nonzero().squeeze(1)
            if len(left) == 0:
                break
            moving = torch.split(left, size)
            for _ in range(steps):
                still_moving = []
                for rows in moving:
                    gradient, logits = input_gradient(model, end[rows], y[rows], loss=loss)
                    if stop_when_fooled:
                        right = ~_is_fooled(logits, y[rows])
                        rows, gradient = rows[right], gradient[right]
                    end[rows] = (end[rows] + step_size * gradient.sign()).clamp(low[rows], high[rows])
                    still_moving.append(rows)
                moving = torch.split(torch.cat(still_moving), size)
                if len(moving[0]) == 0:
                    break
            score = _scores(model, loss, end[left], y[left], size)
            better = score > worst_score[left]
            worst[left[better]], worst_score[left[better]] = end[left[better]], score[better]
    return worst


def _scores(model: Model, loss: Loss, x: Tensor, y: Tensor, size: int) -> Tensor:
    """Return the loss of each sample, or +inf if it is fooled: (B,)."""
    scores = []
    for x_B, y_B in zip(torch.split(x, size), torch.split(y, size), strict=True):
        with torch.no_grad():
            logits = model(x_B)
            losses = loss(logits, y_B)
            if losses.ndim == 0:
                losses = torch.stack([loss(logits[i : i + 1], y_B[i : i + 1]) for i in range(len(y_B))])
        _check_numbers("the loss", losses)
        scores.append(losses.masked_fill(_is_fooled(logits, y_B), torch.inf))
    return torch.cat(scores)


def _is_fooled(logits: Tensor, y: Tensor) -> Tensor:
    if y.is_floating_point():
        return torch.zeros(len(y), dtype=torch.bool, device=y.device)
    return logits.argmax(dim=1) != y


@contextmanager
def plain_gradients(device: torch.device) -> Iterator[None]:
    """Turn autocast off, and allow gradients even for a caller in inference mode."""
    with torch.inference_mode(False), torch.autocast(device.type, enabled=False):
        yield


def _check(model: Model, x: Tensor, y: Tensor, eps: float, *, box: bool = True) -> None:
    """Raise unless x, y and eps can be attacked, x inside [0, 1] if `box`; warn of a model in train mode."""
    check_floats("attacks need", x)
    if x.dtype.itemsize < 4:
        raise InputError(
            f"x has dtype {x.dtype}, whose rounding would leave the ball of a small eps: give float32 pixels "
            "and let the model convert them."
        )
    if len(x) != len(y):
        raise InputError(f"{len(x)} images but {len(y)} labels; attacks need one label per image.")
    check_eps(eps)
    # Cut to the box, a pixel outside would move by far more than eps.
    low, high = torch.aminmax(x.detach()) if box and x.numel() else (0, 1)
    if not (low >= 0 and high <= 1):
        raise InputError(
            f"x has values from {low:.4g} to {high:.4g}; attacks need pixels in [0, 1]: normalise inside the "
            "model, as nn.Sequential(normalise, model) does."
        )
    training = [
        name
        for name, part in (model.named_modules() if isinstance(model, nn.Module) else ())
        if part.training and (isinstance(part, _BatchNorm) or (isinstance(part, _DropoutNd) and part.p > 0))
    ]
    if training:
        warnings.warn(
            f"the attacked model is in train mode (layer {training[0]!r} first), where an image's logits "
            "change from batch to batch: accuracy under attack comes out too high. Call model.eval() first.",
            InputWarning,
            stacklevel=3,
        )


def _check_numbers(what: str, values: Tensor) -> None:
    """Raise if any of `values`, samples first, is NaN: such a sample would count as fooled."""
    bad_B = values.isnan().flatten(1).any(1) if values.ndim > 1 else values.isnan()
    if bad_B.any():
        raise InputError(
            f"{what} is NaN for {int(bad_B.sum())} of {len(values)} images, which would count as fooled: the "
            "model has diverged, overflows in its dtype, or has no derivative there, as sqrt has none at 0."
        )
