"""The robustness-promoting term and its adversarial weighting, row by row.

Shapes: R rows of a pair of views.
"""

import torch
from torch import Tensor

from intnacl.losses.gather import batch_mean
from intnacl.losses.nacl import base_rows
from intnacl.losses.negatives import Pair


def adversarial_weight(clean: Pair, weight: str, *, detach: bool = False, gather: bool = False) -> Tensor:
    """w of section 3.3: 1, or ŵ = −log κ_pos / (κ_pos + N·G) of the same row of the clean pair (R,).

    So rows that are hard to tell from others even without an attack weigh more. "relative" divides ŵ by its
    mean over the batch and is a constant: the robust term then weighs as much as with w = 1. Rows are clamped
    so that no batch divides by 0; they, and not their mean, since Triton 3.6 cannot compile the latter.
    """
    if weight == "one":
        return torch.ones_like(clean.positive_R)
    w_R = base_rows(clean)
    if weight == "relative":
        w_R = w_R.detach().clamp_min(torch.finfo(w_R.dtype).tiny)
        return w_R / batch_mean(w_R, gather)
    return w_R.detach() if detach else w_R


def robust_rows(attacked: Pair, w_R: Tensor) -> Tensor:
    """L_Robust(G, w), section 3.3: −w log κ_adv / (κ_adv + N·G) on the pair (x, x_adv)."""
    return base_rows(attacked) * w_R
