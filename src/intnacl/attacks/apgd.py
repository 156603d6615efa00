"""Auto-PGD in the ℓ∞ ball (Croce & Hein 2020, "Reliable evaluation of adversarial robustness …"): PGD whose
step size needs no tuning, since it is halved when it no longer raises the loss.

Shapes: B samples, C classes; x: (B, 3, H, W) pixels in [0, 1]; z: (B, C) logits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from intnacl.attacks.searches import Batch, per_image, uniform
from intnacl.attacks.training_view import Model, model_output, pixel_gradient

STEPS = 100
RISING = 0.75  # the step size is halved unless more than this share of the steps raises the loss
MOMENTUM = 0.25  # share of the last move in the next one
# Steps between two checks of the step size: at first, how many fewer each time, and at least.
FIRST_PERIOD, PERIOD_DECREASE, SHORTEST_PERIOD = 22, 3, 6
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From logits, labels and target classes to one number per sample."""


def cross_entropy(z_BC: Tensor, y_B: Tensor, target_B: Tensor) -> Tensor:
    """−log softmax(z)_y, which ignores the target."""
    return functional.cross_entropy(z_BC, y_B, reduction="none")


def targeted_dlr(z_BC: Tensor, y_B: Tensor, target_B: Tensor) -> Tensor:
    """−(z_y − z_t) / (z_π1 − (z_π3 + z_π4)/2), the targeted difference of logits ratio; π sorts z."""
    top_B4 = z_BC.topk(4, dim=1).values
    difference_B = (z_BC.gather(1, y_B[:, None]) - z_BC.gather(1, target_B[:, None])).squeeze(1)
    return -difference_B / (top_B4[:, 0] - (top_B4[:, 2] + top_B4[:, 3]) / 2 + 1e-12)


@dataclass(kw_only=True)
class Search(Batch):
    """Samples with the state of their search."""

    target: Tensor
    at: Tensor
    """The current point, from which the next step starts."""
    before: Tensor
    """The point from which the last step started."""
    gradient: Tensor
    value: Tensor
    """The loss after the last step."""
    best: Tensor
    """The point of the highest loss so far."""
    best_gradient: Tensor
    best_value: Tensor
    step_size: Tensor
    rises: Tensor
    """Number of steps since the last check that raised the loss."""
    checked: Tensor
    """The highest loss at the last check."""
    halved: Tensor
    """True where the last check halved the step size."""


def apgd(
    model: Model, x: Tensor, y: Tensor, target: Tensor, eps: float, loss: Loss, seeds: Sequence[int]
) -> Tensor:
    """Return adversarial images of x, or x itself where the search fails: (B, 3, H, W).

    A step goes to x_k + (1 − m)·(Π(x_k + η·sign ∇loss) − x_k) + m·(x_k − x_{k−1}), cut to ball and box, with
    m = `MOMENTUM` and η = 2·eps at first. A check halves η where at most the share `RISING` of the steps has
    raised the loss, or where neither η nor the highest loss has changed since the last check; such samples
    continue from their best point. `seeds` has one seed per sample, for its random start.
    """
    found = x.clone()
    start = 2 * uniform(seeds, *x.shape[1:]).to(x) - 1
    at = (x + eps * start / (start.abs().amax((1, 2, 3), keepdim=True) + 1e-12)).clamp(0, 1)
    value, gradient, fooled = _gradient(model, at, y, target, loss)
    search = Search(
        row=torch.arange(len(x), device=x.device),
        x=x,
        y=y,
        target=target,
        at=at,
        before=at,
        gradient=gradient,
        value=value,
        best=at,
        best_gradient=gradient,
        best_value=value,
        step_size=torch.full_like(value, 2 * eps),
        rises=torch.zeros_like(value),
        checked=value,
        halved=torch.ones_like(fooled),
    )
    search.drop_fooled(fooled, at, found)
    period, steps_since_check = FIRST_PERIOD, 0
    for step in range(STEPS):
        if len(search) == 0:
            break
        low, high = (search.x - eps).clamp(min=0), (search.x + eps).clamp(max=1)
        moved = (search.at + per_image(search.step_size) * search.gradient.sign()).clamp(low, high)
        if step > 0:
            inertia = MOMENTUM * (search.at - search.before)
            moved = (search.at + (1 - MOMENTUM) * (moved - search.at) + inertia).clamp(low, high)
        value, gradient, fooled = _gradient(model, moved, search.y, search.target, loss)
        search.rises = search.rises + (value > search.value)
        higher = value > search.best_value
        search.best = torch.where(per_image(higher), moved, search.best)
        search.best_gradient = torch.where(per_image(higher), gradient, search.best_gradient)
        search.best_value = torch.where(higher, value, search.best_value)
        search.before, search.at, search.gradient, search.value = search.at, moved, gradient, value
        steps_since_check += 1
        if steps_since_check == period:
            stuck = ~search.halved & (search.checked >= search.best_value)
            halve = (search.rises <= RISING * period) | stuck
            search.step_size = torch.where(halve, search.step_size / 2, search.step_size)
            search.at = torch.where(per_image(halve), search.best, search.at)
            search.gradient = torch.where(per_image(halve), search.best_gradient, search.gradient)
            search.rises, search.checked = torch.zeros_like(value), search.best_value
            search.halved = halve
            period, steps_since_check = max(period - PERIOD_DECREASE, SHORTEST_PERIOD), 0
        search.drop_fooled(fooled, moved, found)
    return found


def _gradient(
    model: Model, x: Tensor, y: Tensor, target: Tensor, loss: Loss
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss (B,), its gradient with respect to x, and which samples are fooled."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        z_BC = model_output(model, x)
        value_B = loss(z_BC, y, target)
        gradient = pixel_gradient(value_B.sum(), x)
    return value_B.detach(), gradient, z_BC.detach().argmax(dim=1) != y
