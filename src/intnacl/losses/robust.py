"""The robustness-promoting term and its adversarial weighting, row by row.

Shapes: B images on this process, D embedding size, R = 2B rows of a pair of views.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from intnacl.errors import InputError, check_dense
from intnacl.losses.gather import batch_mean
from intnacl.losses.nacl import base_rows
from intnacl.losses.negatives import Pair

WeightFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A custom w(x): f(x0) (B, D), f(x1) (B, D), clean loss of each row (R,) -> (B,) or (R,)."""


def adversarial_weight(clean: Pair, weight: str, *, detach: bool = False, gather: bool = False) -> Tensor:
    """w of section 3.3: 1, or ŵ = −log κ_pos / (κ_pos + N·G) of the same row of the clean pair (R,).

    Rows that are hard to tell from others even without an attack thus weigh more. "relative" divides ŵ by its
    mean over the batch and is a constant: the robust term then weighs as much as with w = 1. The values are
    clamped to avoid a division by 0; clamping their mean instead fails to compile in Triton 3.6.
    """
    if weight == "one":
        return torch.ones_like(clean.positive_R)
    w_R = base_rows(clean)
    if weight == "relative":
        w_R = w_R.detach().clamp_min(torch.finfo(w_R.dtype).tiny)
        return w_R / batch_mean(w_R, gather)
    return w_R.detach() if detach else w_R


def given_weight(w: Tensor, like_R: Tensor, *, detach: bool = False) -> Tensor:
    """Return a custom w(x) for each row: one value per image, (B,), applies to both of its rows."""
    rows = len(like_R)
    expected = f"one value per image, ({rows // 2},), or one per row, ({rows},), z0's rows first"
    check_dense("weight", w, expected)
    if tuple(w.shape) not in {(rows // 2,), (rows,)} or w.is_complex():
        raise InputError(f"weight is of shape {tuple(w.shape)} and {w.dtype}: expected {expected}.")
    if w.device != like_R.device:
        raise InputError(f"weight is on {w.device}, the views are on {like_R.device}: move it there.")
    w_R = (w if len(w) == rows else w.repeat(2)).to(like_R.dtype)
    return w_R.detach() if detach else w_R


def robust_rows(attacked: Pair, w_R: Tensor) -> Tensor:
    """L_Robust(G, w), section 3.3: −w log κ_adv / (κ_adv + N·G) on the pair (x, x_adv)."""
    return base_rows(attacked) * w_R
