"""FGSM and PGD in the ℓ∞ ball of radius eps around x, inside the box [0, 1], on any loss.

Shapes: B samples, C classes; x: (B, 3, H, W) pixels in [0, 1]; y: (B,) labels. The model maps pixels to
logits (B, C) and normalises inside, so that eps is always in units of pixel values.

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

from intnacl.attacks.training_view import Model, check_numbers, check_pixels, model_output, pixel_gradient
from intnacl.errors import (
    InputError,
    InputWarning,
    call,
    check_bool,
    check_count,
    check_dense,
    check_eps,
    check_number,
    has_floats,
)

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(logits_BC: Tensor, y_B: Tensor) -> Tensor:
    """−log softmax(logits)_y of each sample: (B, C), (B,) or probabilities (B, C) -> (B,)."""
    if y_B.is_floating_point() and (y_B.shape, y_B.dtype) != (logits_BC.shape, logits_BC.dtype):
        raise InputError(
            f"y is {y_B.dtype} of shape {tuple(y_B.shape)}, the logits are {logits_BC.dtype} of shape "
            f"{tuple(logits_BC.shape)}: cross-entropy takes whole numbers as labels, or probabilities like "
            "the logits."
        )
    return functional.cross_entropy(logits_BC, y_B, reduction="none")


def input_gradient(
    model: Model, x: Tensor, y: Tensor, *, loss: Loss = cross_entropy
) -> tuple[Tensor, Tensor]:
    """Return ∇ₓ Σ loss(model(x), y), same shape as x, and the logits of the same forward pass.

    `loss` returns one number per sample, or their mean or sum. The sum over samples keeps their gradients
    separate, so the sign does not depend on the batch size.
    """
    return _gradient(model, x, y, loss, check_batch(model, x, y))


def _gradient(model: Model, x: Tensor, y: Tensor, loss: Loss, classes: int) -> tuple[Tensor, Tensor]:
    """Return what `input_gradient` does, for images and labels that `check_batch` has checked."""
    with torch.enable_grad():
        x = x.detach().clone().requires_grad_()
        logits = _logits(model, x, y, classes)
        gradient = pixel_gradient(_losses(loss, logits, y).sum(), x)
    check_numbers("the gradient of the loss", gradient)
    return gradient, logits.detach()


def fgsm(
    model: Model, x: Tensor, y: Tensor, eps: float, *, loss: Loss = cross_entropy, clamp: bool = True
) -> Tensor:
    """Return x + eps·sign ∇ₓ loss(model(x), y), one step from x itself (Goodfellow et al. 2015).

    With `clamp=False` the result may leave the box [0, 1], as in the paper's own attack. `loss` maps
    (logits, y) to one number per sample, or to their mean or sum: the sign is the same.
    """
    check_bool("clamp", clamp)
    check_attack(model, x, y, eps, box=clamp)
    return along(x, gradient_sign(model, x, y, loss=loss), eps, clamp=clamp)


def gradient_sign(model: Model, x: Tensor, y: Tensor, *, loss: Loss = cross_entropy) -> Tensor:
    """Return sign ∇ₓ loss(model(x), y), shape of x: FGSM's direction, the same for every eps."""
    classes = check_batch(model, x, y)
    with plain_gradients(x.device):
        gradient, _ = _gradient(model, x.detach().clone(), y.clone(), loss, classes)
        return gradient.sign()


def along(x: Tensor, sign: Tensor, eps: float, *, clamp: bool = True) -> Tensor:
    """Return x + eps·sign, clamped to the box [0, 1] if `clamp`."""
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

    Each restart starts at a uniform draw from the ball (at x without `random_start`). For each sample the
    worst of x itself and the restarts' ends is returned: one that fools the model if there is any, else the
    one with the largest loss. So accuracy never exceeds clean accuracy, and eps = 0 returns x.
    `stop_when_fooled` freezes a sample at its first success, which a step above 2·eps, jumping from corner to
    corner of the ball, would lose again.

    `loss` is as in `fgsm`; one that returns a scalar must be a mean or sum over samples, since restarts are
    compared sample by sample. Float targets (embeddings, say) are never "fooled": only the loss counts.

    `batch_size` samples go through the model at once (None: all). Fooled samples leave the batches, so one
    call for many samples takes fewer passes than one call per batch.
    """
    classes = check_attack(model, x, y, eps)
    check_number("step_size", step_size)
    check_count("steps", steps)
    check_count("restarts", restarts)
    check_bool("random_start", random_start)
    check_bool("stop_when_fooled", stop_when_fooled)
    if batch_size is not None:
        check_count("batch_size", batch_size)
    if not isinstance(generator, torch.Generator | None):
        raise InputError(f"generator={generator!r}: give a torch.Generator, or leave it out.")
    size = int(batch_size or max(1, len(x)))
    with plain_gradients(x.device):
        x, y = x.detach().clone(), y.clone()
        low, high = (x - eps).clamp(min=0), (x + eps).clamp(max=1)
        worst, worst_score = x.clone(), _scores(model, loss, x, y, size, classes)
        for _ in range(restarts):
            end = x.clone()
            if random_start:
                # Drawn on the generator's device, so that a seed gives the same draw on any device.
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
                    gradient, logits = _gradient(model, end[rows], y[rows], loss, classes)
                    if stop_when_fooled:
                        right = ~_is_fooled(logits, y[rows])
                        rows, gradient = rows[right], gradient[right]
                    end[rows] = (end[rows] + float(step_size) * gradient.sign()).clamp(low[rows], high[rows])
                    still_moving.append(rows)
                moving = torch.split(torch.cat(still_moving), size)
                if len(moving[0]) == 0:
                    break
            score = _scores(model, loss, end[left], y[left], size, classes)
            better = score > worst_score[left]
            worst[left[better]], worst_score[left[better]] = end[left[better]], score[better]
    return worst


def _scores(model: Model, loss: Loss, x: Tensor, y: Tensor, size: int, classes: int) -> Tensor:
    """Return the loss of each sample, or +inf if it is fooled: (B,)."""
    scores = []
    for x_B, y_B in zip(torch.split(x, size), torch.split(y, size), strict=True):
        with torch.no_grad():
            logits = _logits(model, x_B, y_B, classes)
            losses = _losses(loss, logits, y_B)
            if losses.ndim == 0 and len(y_B):
                each = [_losses(loss, logits[i : i + 1], y_B[i : i + 1]) for i in range(len(y_B))]
                losses = torch.cat([one.reshape(1) for one in each])
        check_numbers("the loss", losses)
        scores.append(losses.masked_fill(_is_fooled(logits, y_B), torch.inf))
    return torch.cat(scores)


def _logits(model: Model, x: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return the model's logits; with class labels, raise unless there are at least `classes` of them."""
    logits = model_output(model, x)
    if not y.is_floating_point() and (logits.ndim != 2 or logits.shape[1] < max(1, classes)):
        raise InputError(
            f"the model returns shape {tuple(logits.shape)}, and the highest label is {classes - 1}: attacks "
            f"need logits, ({len(x)}, classes), of at least {classes} classes, since labels count from 0."
        )
    return logits


def _losses(loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
    """Return the loss of each sample, or their mean or sum; raise if it is anything else."""
    if not callable(loss):
        raise InputError(f"loss is a {type(loss).__name__}: give a function of logits and labels.")
    values: Tensor = call("the loss", loss, logits, y)
    expected = f"floats, one per sample, ({len(logits)},), or their mean or sum"
    check_dense("the value of the loss", values, expected)
    if not has_floats(values) or values.shape not in ((), (len(logits),)):
        raise InputError(
            f"the loss returns {values.dtype} of shape {tuple(values.shape)}: expected {expected}."
        )
    return values


def _is_fooled(logits: Tensor, y: Tensor) -> Tensor:
    if y.is_floating_point():
        return torch.zeros(len(y), dtype=torch.bool, device=y.device)
    return logits.argmax(dim=1) != y


@contextmanager
def plain_gradients(device: torch.device) -> Iterator[None]:
    """Turn autocast off, and allow gradients even for a caller in inference mode."""
    with torch.inference_mode(False), torch.autocast(device.type, enabled=False):
        yield


def check_batch(model: Model, x: Tensor, y: Tensor) -> int:
    """Raise unless x and y are images with one label or target each; return the classes that y needs."""
    check_pixels(model, x)
    check_dense("y", y, f"labels, ({len(x)},)")
    if y.ndim == 0 or len(x) != len(y):
        count = f"{len(y)} labels" if y.ndim else "a single label, without a batch"
        raise InputError(f"{len(x)} images but {count}; attacks need one label per image.")
    if y.device != x.device:
        raise InputError(f"y is on {y.device}, x on {x.device}: move them to one device.")
    if y.is_floating_point():
        return 0
    if y.dtype not in (torch.int64, torch.uint8) or y.ndim != 1:
        raise InputError(
            f"y is {y.dtype} of shape {tuple(y.shape)}: expected whole numbers, ({len(x)},), as y.long() "
            "gives them, or floats that the loss takes as targets."
        )
    low, high = (int(end) for end in torch.aminmax(y)) if len(y) else (0, -1)
    if low < 0:
        raise InputError(f"y has a label of {low}: labels are classes, counted from 0.")
    return high + 1


def check_attack(model: Model, x: Tensor, y: Tensor, eps: float, *, box: bool = True) -> int:
    """Raise unless x, y and eps suit an attack, with x in [0, 1] if `box`; warn of a model in train mode.

    Returns the number of classes that the labels need.
    """
    classes = check_batch(model, x, y)
    if x.dtype.itemsize < 4:
        raise InputError(
            f"x has dtype {x.dtype}, whose rounding would leave the ball of a small eps: give float32 pixels "
            "and let the model convert them."
        )
    check_eps(eps)
    # Clamping would move a pixel outside the box by far more than eps.
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
    return classes
