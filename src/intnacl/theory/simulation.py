"""Measured against the theory: draws from a mixture whose classes, and so unbiased loss, are known.

Shapes: S draws, X points of the mixture, M positives, n and m points of the estimator G, F encoders.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from intnacl.errors import InputError, check_choice
from intnacl.theory.mixture import Mixture

# Kernel values gathered at once: 64 MiB of float64.
CHUNK = 2**23
# Of the data behind `loss_class` and `feature_class`.
CLASSES = 4
# Positives drawn for every anchor of `loss_class`, of which a setting takes its first M.
MOST_POSITIVES = 64


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The numbers of Theorem B.1, and how the loss is written."""

    N: int = 32
    M: int = 1
    n: int = 32
    m: int = 1
    estimator: str = "g1"
    """"g1": debiased with the mixture's true τ⁺ = 1/K; "g0": the plain mean over p."""
    denominator: str = "MN"

    def __post_init__(self) -> None:
        check_choice("estimator", self.estimator, ("g0", "g1"))
        check_choice("denominator", self.denominator, ("N", "MN"))
        for name in ("N", "M", "n", "m"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)} must be 1 or more.")

    @property
    def factor(self) -> int:
        """What multiplies G: M·N in the proofs, N in the main text."""
        return self.M * self.N if self.denominator == "MN" else self.N


def log_ratio(sum_S: Tensor, negative_S: Tensor, factor: float) -> Tensor:
    """−log S/(S + factor·G), row by row."""
    return torch.log1p(factor * negative_S / sum_S)


def estimate(u_Sn: Tensor, v_Sm: Tensor, estimator: str, tau_plus: float, temperature: float) -> Tensor:
    """G from h(x, u_i), u ~ p, and h(x, v_i), v ~ p_x⁺: g0 or g1 (Eqs. 2 and 3), row by row."""
    if estimator == "g0":
        return u_Sn.mean(1)
    debiased_S = (u_Sn.mean(1) - tau_plus * v_Sm.mean(1)) / (1 - tau_plus)
    return debiased_S.clamp(min=math.exp(-1 / temperature))


def deviations(mixture: Mixture, setting: Setting, draws: int, *, seed: int = 0) -> Tensor:
    """Loss with G minus loss with E h⁻, one value a draw of (x, x_j⁺, u_i, v_i), (S,) in float64.

    |mean| is the left side of Theorem B.1; |each| is the Δ of Lemma B.2.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = max(1, CHUNK // max(setting.n, setting.m, setting.M))
    sizes = [min(rows, draws - first) for first in range(0, draws, rows)]
    return torch.cat([_deviations(mixture, setting, size, generator) for size in sizes])


def _deviations(mixture: Mixture, setting: Setting, draws: int, generator: torch.Generator) -> Tensor:
    kernel_XX, own_XP = mixture.kernel_XKP.flatten(1), mixture.own_XP
    points, mates = own_XP.shape
    x_S = torch.randint(points, (draws,), generator=generator)
    positive_SM = own_XP[x_S[:, None], torch.randint(mates, (draws, setting.M), generator=generator)]
    u_Sn = kernel_XX[x_S[:, None], torch.randint(points, (draws, setting.n), generator=generator)]
    v_Sm = own_XP[x_S[:, None], torch.randint(mates, (draws, setting.m), generator=generator)]
    G_S = estimate(u_Sn, v_Sm, setting.estimator, 1 / mixture.classes, mixture.temperature)
    sum_S = positive_SM.sum(1)
    return log_ratio(sum_S, G_S, setting.factor) - log_ratio(sum_S, mixture.negative_X[x_S], setting.factor)


def loss_class(setting: Setting, *, encoders: int, T: int, seed: int = 0) -> Tensor:
    """Losses of F random linear encoders f(x) = Wx/‖Wx‖ on one sample of T anchors, (F, T).

    Encoders and class centres are the same for every `seed`, which draws the sample; a larger M adds
    positives to the same anchors, so that settings can be compared.
    """
    W_FED, centres_KD, generator = _encoders(encoders, seed)
    label_T = torch.randint(CLASSES, (T,), generator=generator)

    def _draw(label: Tensor) -> Tensor:
        return _around(centres_KD[label], generator)

    if setting.M > MOST_POSITIVES:
        raise InputError(f"M={setting.M}: a sample has {MOST_POSITIVES} positives for each anchor at most.")
    x_TD, v_TmD = _draw(label_T), _draw(label_T[:, None].expand(T, setting.m))
    u_TnD = _draw(torch.randint(CLASSES, (T, setting.n), generator=generator))
    positive_TMD = _draw(label_T[:, None].expand(T, MOST_POSITIVES))[:, : setting.M]
    return torch.stack([_losses(W_ED, x_TD, positive_TMD, u_TnD, v_TmD, setting) for W_ED in W_FED])


def feature_class(*, encoders: int, T: int, seed: int = 0) -> Tensor:
    """The features f(x_t) of the same encoders on the same anchors, (F, T·E): R_S(F) is their complexity."""
    W_FED, centres_KD, generator = _encoders(encoders, seed)
    x_TD = _around(centres_KD[torch.randint(CLASSES, (T,), generator=generator)], generator)
    return torch.stack([_embed(x_TD, W_ED).flatten() for W_ED in W_FED])


def _encoders(encoders: int, seed: int) -> tuple[Tensor, Tensor, torch.Generator]:
    """Weights (F, E, D) and class centres (K, D), always the same, and the generator of the sample."""
    dimensions, features = 8, 4
    generator = torch.Generator().manual_seed(0)
    W_FED = torch.randn(encoders, features, dimensions, generator=generator, dtype=torch.float64)
    centres_KD = torch.randn(CLASSES, dimensions, generator=generator, dtype=torch.float64)
    return W_FED, centres_KD, generator.manual_seed(seed + 1)


def _around(centres: Tensor, generator: torch.Generator) -> Tensor:
    return centres + torch.randn(*centres.shape, generator=generator, dtype=torch.float64)


def _embed(points: Tensor, W_ED: Tensor) -> Tensor:
    return torch.nn.functional.normalize(points @ W_ED.T, dim=-1)


def _losses(
    W_ED: Tensor, x_TD: Tensor, positive_TMD: Tensor, u_TnD: Tensor, v_TmD: Tensor, setting: Setting
) -> Tensor:
    z_TE1 = _embed(x_TD, W_ED)[:, :, None]
    positive_TM, u_Tn, v_Tm = (
        (_embed(points, W_ED) @ z_TE1).squeeze(2).exp() for points in (positive_TMD, u_TnD, v_TmD)
    )
    G_T = estimate(u_Tn, v_Tm, setting.estimator, 1 / CLASSES, 1.0)
    return log_ratio(positive_TM.sum(1), G_T, setting.factor)
