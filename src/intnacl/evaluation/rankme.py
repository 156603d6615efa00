"""The effective rank of features: RankMe (Garrido et al. 2023, https://arxiv.org/abs/2210.02885).

    RankMe(Z) = exp(−Σ_k p_k log p_k),   p_k = σ_k(Z) / Σ_j σ_j(Z)

It needs no labels. Features that have collapsed to few directions have a low one.

Shapes: N images, F features.
"""

import torch
from torch import Tensor

from intnacl.evaluation.features import check_finite


def effective_rank(features_NF: Tensor) -> float:
    """Return RankMe of features: from 1, if all have one direction, to min(N, F); 0 if all are zero.

    The paper adds 1e-7 to each p_k to avoid log 0; here a term with p_k = 0 is its limit, 0.
    """
    check_finite(features_NF)
    features_NF = features_NF.double()
    # Singular values are the roots of the eigenvalues of ZᵀZ: in float64 exact to about 1e-8 of the largest.
    if len(features_NF) < features_NF.shape[1]:
        features_NF = features_NF.T
    sigma_F = torch.linalg.eigvalsh(features_NF.T @ features_NF).clamp(min=0).sqrt()
    if not sigma_F.any():
        return 0.0
    return float(torch.special.entr(sigma_F / sigma_F.sum()).sum().exp())
