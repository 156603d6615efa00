"""Neighbourhood-analysis contrastive losses, row by row: NCA over M positives, MIXNCA over mixed pairs.

Shapes: R rows of a pair of views, M positives of a row.
"""

import math

import torch
from torch import Tensor

from intnacl.losses.negatives import Pair, log_omega, log_one_minus_omega


def base_rows(pair: Pair) -> Tensor:
    """−log Ω with Ω = κ_pos / (κ_pos + N·G): SimCLR for g0, Debiased for g1, HardNeg for g2 (Eqs. 2–4)."""
    return -log_omega(*pair)


def nca_rows(pair: Pair, extra_RE: Tensor, denominator: str) -> Tensor:
    """L_NCA(G, M), section 3.2 (I): −log S / (S + N·G) with S = Σ_j κ_j over the row's M positives.

    The positives are the twin and the E = M − 1 extra views of the same image, whose log κ is `extra_RE`.
    `denominator` "MN" uses M·N·G instead of N·G, as the proofs of Appendix B do.
    """
    log_sum_R = torch.cat([pair.positive_R[:, None], extra_RE], dim=1).logsumexp(1)
    log_factor = math.log(1 + extra_RE.shape[1]) if denominator == "MN" else 0.0
    return -log_omega(log_sum_R, pair.negatives_R + log_factor)


def mix_rows(pair: Pair, lam: float) -> Tensor:
    """One mixed view's part of L_MIXNCA(G, M, λ), section 3.2 (II): −λ log Ω − (1 − λ) log(1 − Ω)."""
    return -lam * log_omega(*pair) - (1 - lam) * log_one_minus_omega(*pair)
