"""The Square attack in the ℓ∞ norm (Andriushchenko et al. 2020): random search without gradients.

Shapes: B samples, C classes; x: (B, 3, H, W) pixels in [0, 1]; z: (B, C) logits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from intnacl.attacks.searches import Batch, per_image, uniform
from intnacl.attacks.training_view import Model, model_output

QUERIES = 5000
FIRST_SHARE = 0.8  # of the image that the first squares cover
HALVED_AT = (10, 50, 200, 500, 1000, 2000, 4000)  # queries after which that share is halved


@dataclass(kw_only=True)
class Search(Batch):
    """Samples with their best points so far, the margins there, and the random numbers for squares."""

    best: Tensor
    margin: Tensor
    """z_y − max of the others, which is above 0 as long as y is ahead."""
    drawn: Tensor
    """(B, queries, 2 + 3): row and column of the square, and a sign for each channel."""


def square(model: Model, x: Tensor, y: Tensor, eps: float, seeds: Sequence[int]) -> Tensor:
    """Return adversarial images of x, or x itself where the search fails: (B, 3, H, W).

    It starts with vertical stripes of ±eps. A query moves a square by ±2·eps, clamped to ball and box, and
    keeps the move if it lowers the margin z_y − max_{c≠y} z_c. `seeds` has one seed per sample.
    """
    found = x.clone()
    channels, height, width = x.shape[1:]
    stripes, drawn = channels * width, 2 + channels
    numbers = uniform(seeds, stripes + QUERIES * drawn).to(x)
    signs = (2 * numbers[:, :stripes] - 1).sign().view(-1, channels, 1, width)
    best = (x + eps * signs).clamp(0, 1)
    margin = _margin(model, best, y)
    search = Search(
        row=torch.arange(len(x), device=x.device),
        x=x,
        y=y,
        best=best,
        margin=margin,
        drawn=numbers[:, stripes:].view(-1, QUERIES, drawn),
    )
    search.drop_fooled(margin <= 0, best, found)
    rows_H, columns_W = (torch.arange(side, device=x.device) for side in (height, width))
    for query in range(QUERIES):
        if len(search) == 0:
            break
        side = square_side(query, height, width)
        top_B, left_B, *signs_B = search.drawn[:, query].unbind(1)
        top_B, left_B = (top_B * (height - side + 1)).floor(), (left_B * (width - side + 1)).floor()
        row_BH = (rows_H >= top_B[:, None]) & (rows_H < top_B[:, None] + side)
        column_BW = (columns_W >= left_B[:, None]) & (columns_W < left_B[:, None] + side)
        inside_B1HW = (row_BH[:, :, None] & column_BW[:, None, :])[:, None]
        sign_BC11 = (2 * torch.stack(signs_B, dim=1) - 1).sign()[:, :, None, None]
        # From any point of the ball, a move by 2·eps ends at that end of the ball.
        moved = torch.where(inside_B1HW, (search.x + eps * sign_BC11).clamp(0, 1), search.best)
        margin = _margin(model, moved, search.y)
        lower = margin < search.margin
        search.best = torch.where(per_image(lower), moved, search.best)
        search.margin = torch.where(lower, margin, search.margin)
        search.drop_fooled(search.margin <= 0, search.best, found)
    return found


def square_side(query: int, height: int, width: int) -> int:
    """Return the side of the squares of a query, in pixels."""
    share = FIRST_SHARE / 2 ** sum(query > after for after in HALVED_AT)
    return min(max(1, round(math.sqrt(share * height * width))), height, width)


@torch.no_grad()
def _margin(model: Model, x: Tensor, y: Tensor) -> Tensor:
    z_BC = model_output(model, x)
    others_BC = z_BC.scatter(1, y[:, None], -torch.inf)
    return z_BC.gather(1, y[:, None]).squeeze(1) - others_BC.amax(1)
