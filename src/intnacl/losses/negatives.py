"""The negative estimators g0 ⊂ g1 ⊂ g2 as one formula in (τ⁺, β), on the rows of a pair of views.

Shapes: B images on this process, D embedding size, R = 2B rows: the first view's, then the second's;
U negatives and V positives of a row, the paper's n and m.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from intnacl.errors import InputError, check_choice, check_dense, has_floats
from intnacl.losses.config import LossConfig
from intnacl.losses.gather import Embedding
from intnacl.losses.similarity import log_mean_negatives, paired_similarity


class Estimator(NamedTuple):
    """G(x) = max{(Σᵢκᵢ^(β+1)/Σᵢκᵢ^β − τ⁺ Σⱼκⱼ/m) / (1 − τ⁺), e^(−1/t)}: g2, below Eq. 4.

    i runs over n negatives and j over m positives; the losses of the family have n = N and m = 1. With β = 0
    it is g1, Eq. 3; with τ⁺ = 0 as well it is g0, Eq. 2, whose mean is never below e^(−1/t).
    """

    tau_plus: float
    beta: float


def estimator(name: str, tau_plus: float, beta: float) -> Estimator:
    """Return the named estimator: g0 uses neither number, g1 uses τ⁺, g2 both."""
    check_choice("negatives", name, ("g0", "g1", "g2"))
    return {"g0": Estimator(0.0, 0.0), "g1": Estimator(tau_plus, 0.0), "g2": Estimator(tau_plus, beta)}[name]


class Pair(NamedTuple):
    """Two views as the losses of the family use them: the positive and the negatives of each row.

    `positive_R` is log κ_pos of the row and its twin, `negatives_R` is log(N·G).
    """

    positive_R: Tensor
    negatives_R: Tensor


def compare(first: Embedding, second: Embedding, g: Estimator, temperature: float) -> Pair:
    """Stack two views into R rows: a row's positive is its twin, its negatives are the other N rows."""
    rows_RD = torch.cat([first.own_BD, second.own_BD])
    gathered = first.all_GD is not first.own_BD
    # On one process the keys are the rows: a view of them, since torch.compile refuses the same tensor twice.
    keys_KD = torch.cat([first.all_GD, second.all_GD]) if gathered else rows_RD.view_as(rows_RD)
    positive_B = paired_similarity(first.own_BD, second.own_BD, temperature)
    positive_R = torch.cat([positive_B, positive_B])
    log_mean_R = log_mean_negatives(rows_RD, keys_KD, temperature, g.beta, first.first)
    log_g_R = log_debiased(log_mean_R, positive_R, g.tau_plus, temperature)
    return Pair(positive_R, log_g_R + math.log(len(keys_KD) - 2))


def log_estimate(negatives_RU: Tensor, positives_RV: Tensor, g: Estimator, temperature: float) -> Tensor:
    """log G of any number of negatives and positives, from their log κ: (R, U), (R, V) -> (R,).

    The losses of the family have one positive per row and never store their negatives as a table (R, U).
    """
    if not isinstance(g, Estimator):
        raise InputError(f"g is a {type(g).__name__}: expected estimator('g2', tau_plus, beta), for example.")
    LossConfig(tau_plus=g.tau_plus, beta=g.beta, temperature=temperature)  # checks their ranges
    for name, values in (("negatives", negatives_RU), ("positives", positives_RV)):
        check_dense(name, values, "log κ, (rows, values)")
        if values.ndim != 2 or not values.shape[1] or not has_floats(values):
            raise InputError(
                f"{name} is {values.dtype} of shape {tuple(values.shape)}: expected log κ, floats of (rows, "
                "values), with at least one value per row."
            )
    if len(negatives_RU) != len(positives_RV) or negatives_RU.device != positives_RV.device:
        raise InputError(
            f"there are {len(negatives_RU)} rows of negatives on {negatives_RU.device}, {len(positives_RV)} "
            f"of positives on {positives_RV.device}: give both for the same rows, on one device."
        )
    log_mean_R = ((g.beta + 1) * negatives_RU).logsumexp(1) - (g.beta * negatives_RU).logsumexp(1)
    log_positive_R = positives_RV.logsumexp(1) - math.log(positives_RV.shape[1])
    return log_debiased(log_mean_R, log_positive_R, g.tau_plus, temperature)


def log_debiased(log_mean_R: Tensor, positive_R: Tensor, tau_plus: float, temperature: float) -> Tensor:
    """log G from the log-means E and s of κ over a row's negatives and its positives: (R,), (R,) -> (R,).

    log max{(e^E − τ⁺ e^s) / (1 − τ⁺), e^(−1/t)} = max{E + log(1 − e^(log τ⁺ + s − E)) − log(1 − τ⁺), −1/t}.
    """
    if tau_plus == 0:
        return log_mean_R
    log_share_R = math.log(tau_plus) + positive_R - log_mean_R
    inside_R = log_share_R < 0  # otherwise the difference is not positive, and G is at its floor
    safe_R = log_share_R.clamp(max=-torch.finfo(log_share_R.dtype).eps)
    log_rest_R = torch.log(-torch.expm1(safe_R)) - math.log1p(-tau_plus)
    floor = torch.full_like(log_mean_R, -1 / temperature)
    return torch.where(inside_R, torch.maximum(log_mean_R + log_rest_R, floor), floor)


def log_omega(positive_R: Tensor, negatives_R: Tensor) -> Tensor:
    """log Ω = log κ_pos / (κ_pos + N·G), from log κ_pos and log(N·G)."""
    return F.logsigmoid(positive_R - negatives_R)


def log_one_minus_omega(positive_R: Tensor, negatives_R: Tensor) -> Tensor:
    """log(1 − Ω) = log N·G / (κ_pos + N·G), exact even where Ω is tiny."""
    return F.logsigmoid(negatives_R - positive_R)
