"""The empirical Rademacher complexity of a finite class of functions, by Monte Carlo.

Shapes: F functions, T sample points, S draws of signs.
"""

import torch
from torch import Tensor

from intnacl.errors import InputError


def complexity(values_FT: Tensor, draws: int = 1000, *, seed: int = 0) -> tuple[float, float]:
    """R_S(G) = E_σ sup_g Σ_t σ_t g(x_t), unnormalised as in the paper, and the estimate's standard error.

    Args:
        values_FT: g(x_t) of each function at each point; features f(x_t) ∈ R^D count as T·D values.
        draws: Draws of the signs σ ∈ {−1, 1}^T.
        seed: Of the signs.
    """
    if values_FT.ndim != 2 or draws < 2:
        raise InputError(
            f"values {tuple(values_FT.shape)}, draws={draws}: give (functions, points) and 2 or more."
        )
    generator = torch.Generator().manual_seed(seed)
    signs_ST = torch.randint(0, 2, (draws, values_FT.shape[1]), generator=generator).to(values_FT) * 2 - 1
    # A shift common to all functions leaves the mean as it is and takes away most of its noise.
    suprema_S = (signs_ST @ (values_FT - values_FT.mean(0)).T).amax(1)
    return suprema_S.mean().item(), suprema_S.std().item() / draws**0.5
