"""The adversarial views that encoders are trained on, and the settings of the one for contrastive losses.

Shapes: B images, x: (B, 3, H, W) pixels in [0, 1], z: (B, D) embeddings, F features.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from intnacl.errors import (
    InputError,
    Settings,
    call,
    check_bool,
    check_count,
    check_dense,
    check_eps,
    check_floats,
    has_floats,
    must,
    one_of,
    setting,
)
from intnacl.losses.config import Negatives
from intnacl.losses.integrated import IntNaClLoss

Model = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class AdversaryConfig(Settings):
    """The adversarial training view (used when the loss has alpha > 0)."""

    prefix: ClassVar[str] = "adversary "
    eps: float = setting(0.015, must(lambda v: 0 < v <= 1, "above 0 and at most 1"))
    """Radius in pixel values from 0 to 1."""
    steps: int = setting(1, check_count)
    """Number of sign steps; if several, each of size 2·eps / steps."""
    random_start: bool = setting(False, check_bool)
    """Take the first gradient at a random point of the ball."""
    clamp: bool = setting(False, check_bool)
    """Keep the view in [0, 1]."""
    negatives: str = setting("g0", one_of(*get_args(Negatives)))
    """The estimator of the loss that the view maximises; g0: the SimCLR loss, as in the paper."""


def adversarial_view(
    encoder: Model,
    x: Tensor,
    eps: float,
    *,
    steps: int = 1,
    random_start: Tensor | None = None,
    criterion: IntNaClLoss | None = None,
    clamp: bool = False,
    check: bool = True,
) -> Tensor:
    """Return the training view x_adv: `steps` sign steps from x that maximise the SimCLR loss of (x, x_adv).

    x_adv = x + eps·sign ∇ L(z, f(x_adv)) with z = f(x) held fixed, f the encoder in its current mode (for
    training: train mode, with the adversarial batch norm) and L the `criterion`, by default SimCLR's at
    t = 0.5. Several steps have a size of 2·eps / steps each and stay in the ball. The first gradient is taken
    at x + eps·`random_start` (numbers in [−1, 1], shape of x), or at x itself. The view may leave the box
    [0, 1], as in the reference, unless `clamp`. Parameters get no gradient, and none of their hooks fires, so
    that a surrounding DDP is not affected.

    Steps, ball and box are computed in float32 or better. A view of half-precision pixels is rounded to their
    dtype once, at the end: by up to ε/4 for a pixel below 1 and ε/2 for one above, where ε is the dtype's
    `torch.finfo(…).eps` (1/128 in bfloat16). Give float32 pixels to stay in the ball.

    NaN in pixels or in a gradient raises an error. This check has to wait for the GPU: `check=False` skips
    it, as does code that is compiled or captured.
    """
    check_pixels(encoder, x)
    check_eps(eps)
    check_count("steps", steps)
    criterion = IntNaClLoss() if criterion is None else criterion
    check_bool("clamp", clamp)
    if not callable(criterion):
        raise InputError(f"criterion is a {type(criterion).__name__}: expected an IntNaClLoss.")
    if random_start is not None:
        check_dense("random_start", random_start, f"numbers in [−1, 1], {tuple(x.shape)}")
        same = random_start.shape == x.shape and random_start.device == x.device
        if not same or not has_floats(random_start):
            raise InputError(
                f"random_start is {random_start.dtype} of shape {tuple(random_start.shape)} on "
                f"{random_start.device}: expected floats like x, {tuple(x.shape)} on {x.device}."
            )
    check = check and not torch.compiler.is_compiling()
    check = check and not (x.is_cuda and torch.cuda.is_current_stream_capturing())
    embed: Model = encoder
    maximised: Callable[[Tensor, Tensor], Tensor] = criterion
    if check:
        embed, maximised = partial(model_output, encoder), partial(call, "the criterion", criterion)
        check_numbers("x", x.detach(), "attacks need pixels in [0, 1]")
    step_size = view_step(eps, steps)
    fixed: Tensor | None = None
    with torch.inference_mode(False), _without_parameter_gradients(encoder):
        x = x.clone() if x.is_inference() else x.detach()  # inference tensors can never get a gradient
        given, x = x, x.to(torch.promote_types(x.dtype, torch.float32))
        moved = x
        if random_start is not None:
            moved = x + eps * random_start
            with torch.no_grad():
                fixed = embed(given)
        for _ in range(steps):
            with torch.enable_grad():
                leaf = moved.to(given.dtype).detach().requires_grad_()
                z = embed(leaf)
                # Without a random start, the first forward pass gives both embeddings.
                fixed = z.detach() if fixed is None else fixed
                # The criterion's mean over B rows makes gradients so small that float16 rounds some to zero;
                # a power of two near B prevents that and changes no bit in other dtypes.
                scaled_loss = maximised(fixed, z) * 2 ** len(x).bit_length()
                gradient = pixel_gradient(scaled_loss, leaf)
            if check:
                check_numbers("the gradient of the loss", gradient)
            moved = (moved + step_size * gradient.sign()).clamp(x - eps, x + eps)
    return (moved.clamp(0, 1) if clamp else moved).to(given.dtype)


def feature_view(
    encoder: Model,
    x: Tensor,
    target_BF: Tensor,
    eps: float | Tensor,
    step_size: float | Tensor,
    *,
    steps: int,
    random_start: Tensor | None = None,
) -> Tensor:
    """Return the view x_adv whose features have the lowest cosine with their targets, found by PGD.

    x_adv ← Π(x_adv + step_size·sign ∇ −cos(f(x_adv), target)), Π the projection onto the ball of radius eps
    around x and onto the box [0, 1] (DeACL, Zhang et al. 2022). The encoder f is in its current mode: eval
    mode does not change the statistics of batch norm. Its parameters get no gradient. Radius and step size
    may be tensors, such as functions of the training step. The first gradient is taken at x +
    eps·`random_start` (numbers in [−1, 1], shape of x), or at x itself. Nothing here waits for the GPU.
    """
    with _without_parameter_gradients(encoder):
        x = x.detach()
        low, high = (x - eps).clamp(min=0), (x + eps).clamp(max=1)
        start = x if random_start is None else (x + eps * random_start).clamp(low, high)

        def away(moved: Tensor) -> Tensor:
            return -functional.cosine_similarity(as_float(encoder(moved)), as_float(target_BF)).sum()

        return ascend(away, x, start, eps, step_size, steps)


def ascend(
    objective: Callable[[Tensor], Tensor],
    x: Tensor,
    start: Tensor,
    eps: float | Tensor,
    step_size: float | Tensor,
    steps: int,
) -> Tensor:
    """Return x_adv after sign steps that raise an objective: x_adv ← Π(x_adv + step_size·sign ∇objective).

    The steps start at `start`. Π clamps to the ball of radius eps around x and to the box [0, 1].
    """
    low, high = (x - eps).clamp(min=0), (x + eps).clamp(max=1)
    moved = start
    for _ in range(steps):
        with torch.enable_grad():
            leaf = moved.detach().requires_grad_()
            gradient = pixel_gradient(objective(leaf), leaf)
        moved = (moved + step_size * gradient.sign()).clamp(low, high)
    return moved.detach()


def as_float(features: Tensor) -> Tensor:
    """Return features in float32 or better, in which cosines are computed."""
    return features.to(torch.promote_types(features.dtype, torch.float32))


def check_pixels(model: Model, x: Tensor) -> None:
    """Raise unless `model` can be called, and x is a batch of images in floats."""
    if not callable(model):
        raise InputError(
            f"the model is a {type(model).__name__}: give a network, or a function of pixels (B, 3, H, W)."
        )
    check_dense("x", x, "images, (batch, channels, height, width)")
    check_floats("attacks need", x)
    if x.ndim != 4:
        raise InputError(
            f"x has shape {tuple(x.shape)}: expected images, (batch, channels, height, width); x[None] makes "
            "a batch of one."
        )


def model_output(model: Model, x: Tensor) -> Tensor:
    """Return the network's output for x; raise unless it is a tensor of floats with one row per image."""
    rows = call("the model", model, x)
    if not isinstance(rows, Tensor):
        raise InputError(
            f"the model returns a {type(rows).__name__}: wrap it to return its logits or embeddings alone."
        )
    if rows.ndim == 0 or len(rows) != len(x) or not has_floats(rows) or rows.device != x.device:
        raise InputError(
            f"the model returns {rows.dtype} of shape {tuple(rows.shape)} on {rows.device}, for {len(x)} "
            f"images on {x.device}: expected floats on that device, one row per image."
        )
    return rows


def pixel_gradient(loss: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of a scalar loss with respect to x; raise if the loss does not depend on x."""
    found = torch.autograd.grad(loss, x, allow_unused=True)[0] if loss.requires_grad else None
    if found is None:
        raise InputError(
            "the loss has no gradient with respect to x: leave detach(), no_grad(), argmax() and "
            "integers out of the model and the loss."
        )
    return found


DIVERGED = (
    "the model has diverged, overflows in its dtype, or has no derivative there, as sqrt has none at 0. Such "
    "images would count as fooled"
)


def check_numbers(name: str, values: Tensor, why: str = DIVERGED) -> None:
    """Raise if any of `values`, whose first axis is samples, is NaN; `why` states the likely cause."""
    bad_B = values.isnan().flatten(1).any(1) if values.ndim > 1 else values.isnan()
    if bad_B.any():
        raise InputError(f"{name} is NaN for {int(bad_B.sum())} of {len(values)} images: {why}.")


def view_step(eps: float, steps: int) -> float:
    """Return the size of a step of the training view."""
    return eps if steps == 1 else 2 * eps / steps


@contextmanager
def _without_parameter_gradients(encoder: Model) -> Iterator[None]:
    """Turn off gradients of a module's parameters inside, so that none is computed or stored."""
    parameters = encoder.parameters() if isinstance(encoder, nn.Module) else ()
    wanted = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in wanted:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in wanted:
            parameter.requires_grad_(True)
