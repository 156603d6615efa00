"""The targeted fast adaptive boundary attack in the ℓ∞ norm (Croce & Hein 2020, "Minimally distorted …").

Its steps go to the boundary of a target class, where a linear model has it, and are drawn back to the image.

Shapes: B samples, D numbers a sample; x: (B, 3, H, W) pixels in [0, 1].
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from intnacl.attacks.searches import Batch, wide
from intnacl.attacks.training_view import Model, pixel_gradient, rows_of

STEPS = 100
OVERSHOOT = 1.05
DRAW = 0.1  # the largest weight of the step that begins at the image itself
BACK = 0.9  # share of its distance that a fooled sample keeps
NEWTON = 12  # steps to the projection at most; three or four are enough for moves of a few percent
CLOSE = 1e-6  # the step after which they end


@dataclass(kw_only=True)
class Search(Batch):
    """Samples with their target class, the point they have reached, and what the model is like there."""

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
    `DRAW`) and η = `OVERSHOOT`. A fooled sample that is farther away than eps goes back towards x.
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
    search.leave(fooled, x, found)
    for _ in range(STEPS):
        if len(search) == 0:
            break
        # f(x_k) + ∇f·(u + d − x_k) = 0 asks of a move d from u for ∇f·d = −f(x_k) − ∇f·(u − x_k).
        from_image = -search.margin - (search.gradient * (search.x - search.at)).sum((1, 2, 3))
        points, planes = torch.cat((search.at, search.x)), search.gradient.repeat(2, 1, 1, 1)
        moves = shortest_move(points, planes, torch.cat((-search.margin, from_image)))
        here, image = moves.chunk(2)
        lengths = moves.abs().amax((1, 2, 3)).clamp(min=1e-8)
        share = wide(
            (lengths[: len(search)] / (lengths[: len(search)] + lengths[len(search) :])).clamp(max=DRAW)
        )
        search.at = (
            (1 - share) * (search.at + OVERSHOOT * here) + share * (search.x + OVERSHOOT * image)
        ).clamp(0, 1)
        search.margin, search.gradient, fooled = _linear(model, search.at, search.y, search.target)
        far = fooled & ((search.at - search.x).abs().amax((1, 2, 3)) > eps)
        if far.any():
            search.at = torch.where(wide(far), search.x + BACK * (search.at - search.x), search.at)
            margin, gradient, _ = _linear(model, search.at[far], search.y[far], search.target[far])
            search.margin[far], search.gradient[far] = margin, gradient
        search.leave(fooled & ~far, search.at, found)
    return found


def shortest_move(x: Tensor, w: Tensor, c: Tensor) -> Tensor:
    """Return the move d of least ‖d‖∞ with w·d = c and x + d in [0, 1], or the farthest there is towards it.

    d = sign(c·w)·min(λ, room), room being what the box leaves in that direction, and λ solves g(λ) =
    Σ|w|·min(λ, room) = |c|. g is concave and increasing: Newton's steps from λ = 0 rise to the solution.
    """
    direction = (w * wide(c.sign())).sign().flatten(1)
    x_BD, weight_BD, total_B1 = x.flatten(1), w.abs().flatten(1), c.abs()[:, None]
    room_BD = torch.where(direction > 0, 1 - x_BD, x_BD)
    reach_B1 = torch.zeros_like(total_B1)
    for _ in range(NEWTON):
        slope_B1 = (weight_BD * (room_BD > reach_B1)).sum(1, keepdim=True)
        filled_B1 = (weight_BD * torch.minimum(room_BD, reach_B1)).sum(1, keepdim=True)
        step_B1 = (total_B1 - filled_B1) / slope_B1.clamp(min=1e-12) * (slope_B1 > 0)
        reach_B1 = (reach_B1 + step_B1).clamp(0, 1)
        if not (step_B1 > CLOSE).any():
            break
    return (direction * torch.minimum(room_BD, reach_B1)).view_as(x)


def _linear(model: Model, x: Tensor, y: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return f = z_t − z_y (B,), its gradient by x, and which samples are fooled."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        z_BC = rows_of(model, x)
        margin_B = (z_BC.gather(1, target[:, None]) - z_BC.gather(1, y[:, None])).squeeze(1)
        gradient = pixel_gradient(margin_B.sum(), x)
    return margin_B.detach(), gradient, z_BC.detach().argmax(dim=1) != y
