"""The targeted fast adaptive boundary attack in the ℓ∞ norm (Croce & Hein 2020, "Minimally distorted …").

Each step goes to the boundary of a target class in a linear model of the network, and is pulled back towards
the image.

Shapes: B samples, D numbers a sample; x: (B, 3, H, W) pixels in [0, 1].
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from intnacl.attacks.searches import Batch, per_image
from intnacl.attacks.training_view import Model, model_output, pixel_gradient

STEPS = 100
OVERSHOOT = 1.05
MAX_PULL = 0.1  # the largest weight of the step that starts at the image itself
BACK = 0.9  # share of its distance from the image that a fooled sample keeps
NEWTON_STEPS = 12  # at most, for a projection; three or four are enough for moves of a few percent
NEWTON_TOLERANCE = 1e-6  # the steps end when they are no larger than this


@dataclass(kw_only=True)
class Search(Batch):
    """Samples with their target class, their current point, and the linear model there."""

    target: Tensor
    at: Tensor
    margin: Tensor
    """f = z_t − z_y, which is below 0 as long as y is ahead."""
    gradient: Tensor
    """∇f."""


def fab(model: Model, x: Tensor, y: Tensor, target: Tensor, eps: float) -> Tensor:
    """Return adversarial images of x at a distance of at most eps, or x where the search fails: (B, 3, H, W).

    With f = z_t − z_y and d(u) the shortest move from u to the plane f(x_k) + ∇f·(· − x_k) = 0 inside the
    box, x_{k+1} = (1 − α)(x_k + η·d(x_k)) + α(x + η·d(x)), where α = min(‖d(x_k)‖ / (‖d(x_k)‖ + ‖d(x)‖),
    `MAX_PULL`) and η = `OVERSHOOT`. A fooled sample farther away than eps moves back towards x.
    """
    found = x.clone()
    margin, gradient, fooled = _linear(model, x, y, target)
    search = Search(
        row=torch.arange(len(x), device=x.device),
        x=x,
        y=y,
        target=target,
        at=x,
        margin=margin,
        gradient=gradient,
    )
    search.drop_fooled(fooled, x, found)
    for _ in range(STEPS):
        if len(search) == 0:
            break
        # f(x_k) + ∇f·(u + d − x_k) = 0 asks of a move d from u for ∇f·d = −f(x_k) − ∇f·(u − x_k).
        from_image = -search.margin - (search.gradient * (search.x - search.at)).sum((1, 2, 3))
        points, planes = torch.cat((search.at, search.x)), search.gradient.repeat(2, 1, 1, 1)
        moves = shortest_move(points, planes, torch.cat((-search.margin, from_image)))
        here, image = moves.chunk(2)
        lengths = moves.abs().amax((1, 2, 3)).clamp(min=1e-8)
        share = per_image(
            (lengths[: len(search)] / (lengths[: len(search)] + lengths[len(search) :])).clamp(max=MAX_PULL)
        )
        search.at = (
            (1 - share) * (search.at + OVERSHOOT * here) + share * (search.x + OVERSHOOT * image)
        ).clamp(0, 1)
        search.margin, search.gradient, fooled = _linear(model, search.at, search.y, search.target)
        far = fooled & ((search.at - search.x).abs().amax((1, 2, 3)) > eps)
        if far.any():
            search.at = torch.where(per_image(far), search.x + BACK * (search.at - search.x), search.at)
            margin, gradient, _ = _linear(model, search.at[far], search.y[far], search.target[far])
            search.margin[far], search.gradient[far] = margin, gradient
        search.drop_fooled(fooled & ~far, search.at, found)
    return found


def shortest_move(x: Tensor, w: Tensor, c: Tensor) -> Tensor:
    """Return the move d of least ‖d‖∞ with w·d = c and x + d in [0, 1], or the farthest towards it.

    d = sign(c·w)·min(λ, room), where room is the distance to the box's edge that way and λ solves g(λ) =
    Σ|w|·min(λ, room) = |c|. g is concave and increasing: Newton's steps from λ = 0 rise to the solution.
    """
    direction = (w * per_image(c.sign())).sign().flatten(1)
    x_BD, weight_BD, total_B1 = x.flatten(1), w.abs().flatten(1), c.abs()[:, None]
    room_BD = torch.where(direction > 0, 1 - x_BD, x_BD)
    reach_B1 = torch.zeros_like(total_B1)
    for _ in range(NEWTON_STEPS):
        slope_B1 = (weight_BD * (room_BD > reach_B1)).sum(1, keepdim=True)
        filled_B1 = (weight_BD * torch.minimum(room_BD, reach_B1)).sum(1, keepdim=True)
        step_B1 = (total_B1 - filled_B1) / slope_B1.clamp(min=1e-12) * (slope_B1 > 0)
        reach_B1 = (reach_B1 + step_B1).clamp(0, 1)
        if not (step_B1 > NEWTON_TOLERANCE).any():
            break
    return (direction * torch.minimum(room_BD, reach_B1)).view_as(x)


def _linear(model: Model, x: Tensor, y: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return f = z_t − z_y (B,), its gradient with respect to x, and which samples are fooled."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        z_BC = model_output(model, x)
        margin_B = (z_BC.gather(1, target[:, None]) - z_BC.gather(1, y[:, None])).squeeze(1)
        gradient = pixel_gradient(margin_B.sum(), x)
    return margin_B.detach(), gradient, z_BC.detach().argmax(dim=1) != y
