"""The adversarial view that an encoder is trained on, and its settings.

Shapes: B images, x: (B, 3, H, W) pixels in [0, 1], z: (B, D) embeddings.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, get_args

import torch
from torch import Tensor, nn

from intnacl.errors import InputError, Settings, check_eps, check_floats, must, one_of, setting
from intnacl.losses.config import Negatives
from intnacl.losses.integrated import IntNaClLoss

Model = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class AdversaryConfig(Settings):
    """The adversarial training view (used when the loss has alpha > 0)."""

    prefix: ClassVar[str] = "adversary "
    eps: float = setting(0.015, must(lambda v: 0 < v <= 1, "above 0 and at most 1: it counts in pixels"))
    """Radius in pixels of [0, 1]."""
    steps: int = setting(1, must(lambda v: v >= 1, "1 or more"))
    """Number of sign steps; if several, each of size 2·eps / steps."""
    random_start: bool = False
    """Take the first gradient at a random point of the ball."""
    clamp: bool = False
    """Keep the view in [0, 1]."""
    negatives: str = setting("g0", one_of(*get_args(Negatives)))
    """The estimator of the loss that the view maximises; g0: SimCLR's, as the paper writes."""


def adversarial_view(
    encoder: Model,
    x: Tensor,
    eps: float,
    *,
    steps: int = 1,
    random_start: Tensor | None = None,
    criterion: IntNaClLoss | None = None,
    clamp: bool = False,
) -> Tensor:
    """Return the training view x_adv: `steps` sign steps from x that maximise the SimCLR loss of (x, x_adv).

    x_adv = x + eps·sign ∇ L(z, f(x_adv)) with z = f(x) held fixed, f the encoder in its present mode (for
    training: train mode, with the adversarial batch norm) and L the `criterion`, by default SimCLR's at
    t = 0.5. Several steps are of 2·eps / steps each and stay in the ball. The first gradient is taken at x +
    eps·`random_start` (numbers in [−1, 1], shape of x), or at x itself. The view may leave the box [0, 1], as
    in the reference, unless `clamp`. Parameters get no gradient, and none of their hooks fires, so that a
    surrounding DDP is not affected.

    Steps, ball and box are computed in float32 at least. A view of half-precision pixels is rounded to their
    type once, at the end, by up to ε/4 of a pixel below 1 and ε/2 of one above, ε its `torch.finfo(…).eps`
    (1/128 in bfloat16): give float32 pixels to stay in the ball.
    """
    check_floats("attacks need", x)
    check_eps(eps)
    if steps < 1:
        raise InputError(f"steps={steps!r} must be at least 1.")
    criterion = criterion or IntNaClLoss()
    step_size = view_step(eps, steps)
    fixed: Tensor | None = None
    with torch.inference_mode(False), _without_parameter_gradients(encoder):
        x = x.clone() if x.is_inference() else x.detach()  # inference tensors can never get a gradient
        given, x = x, x.to(torch.promote_types(x.dtype, torch.float32))
        moved = x
        if random_start is not None:
            moved = x + eps * random_start
            with torch.no_grad():
                fixed = encoder(given)
        for _ in range(steps):
            with torch.enable_grad():
                leaf = moved.to(given.dtype).detach().requires_grad_()
                z = encoder(leaf)
                if not isinstance(z, Tensor):
                    raise InputError(
                        f"encoder returns a {type(z).__name__}: wrap it to return its embeddings alone."
                    )
                # Without a random start, the first forward pass gives both embeddings.
                fixed = z.detach() if fixed is None else fixed
                # The criterion's mean over B rows makes gradients so small that float16 rounds some to zero;
                # a power of two about B prevents that and changes no bit in other types.
                scaled_loss = criterion(fixed, z) * 2 ** len(x).bit_length()
                (gradient,) = torch.autograd.grad(scaled_loss, leaf)
            moved = (moved + step_size * gradient.sign()).clamp(x - eps, x + eps)
    return (moved.clamp(0, 1) if clamp else moved).to(given.dtype)


def view_step(eps: float, steps: int) -> float:
    """Return the size of a step of the training view."""
    return eps if steps == 1 else 2 * eps / steps


@contextmanager
def _without_parameter_gradients(encoder: Model) -> Iterator[None]:
    """Turn off gradients of a module's parameters inside: nothing is computed or kept for them."""
    parameters = encoder.parameters() if isinstance(encoder, nn.Module) else ()
    wanted = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in wanted:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in wanted:
            parameter.requires_grad_(True)
