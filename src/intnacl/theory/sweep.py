"""The theory's inequalities measured over n, m, M and ε on one synthetic mixture: numbers, ready to plot.

Every list holds one dict a setting. Measured: `gap` = |mean of the deviations|, the left side of Theorem B.1,
and `spread` = mean Δ, which its proof bounds. Bounds: `paper` as stated, `proved` as in docs/theory.md.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from intnacl.errors import InputError, check_count
from intnacl.theory.bounds import (
    debiasing_gap,
    deviation_tail,
    generalisation_debiased,
    generalisation_nca,
    negatives_for_supervision,
    proved_debiasing_gap,
    proved_deviation_tail,
)
from intnacl.theory.mixture import (
    Mixture,
    mean_classifier_loss,
    random_mixture,
    supervised_loss,
    unbiased_loss,
)
from intnacl.theory.rademacher import complexity
from intnacl.theory.simulation import Setting, deviations, feature_class, loss_class

Rows = list[dict[str, float]]
# The class of functions whose complexity is measured: random linear encoders on T anchors.
ENCODERS, ANCHORS = 64, 256
POSITIVES = (1, 2, 4, 8, 16)  # M, where varied


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """The mixture and how often to draw from it."""

    classes: int = 4
    """K; τ⁺ is 1/K."""
    points: int = 16
    """Points of a class."""
    dimensions: int = 8
    """Of the features."""
    spread: float = 0.8
    """Noise around a class centre, in units of the centre's own entries."""
    N: int = 32
    """Weight of the negative term."""
    n: int = 256
    """Points that estimate the mean over p, where not varied."""
    m: int = 256
    """Points that estimate the mean over the anchor's class, where not varied."""
    delta: float = 0.05
    """Probability with which Theorems 3.1 and B.4 may fail."""
    draws: int = 4000
    """Draws a setting."""
    seed: int = 0
    """Of the mixture and the draws."""

    def __post_init__(self) -> None:
        for name, least in (("classes", 2), ("points", 1), ("dimensions", 1), ("draws", 2)):
            check_count(name, getattr(self, name), least)
        if not 0 < self.delta < 1:
            raise InputError(f"delta={self.delta} is a probability: it must lie strictly between 0 and 1.")
        if not -(2**63) <= self.seed < 2**63 - 1:  # torch's range; the sample's seed is the next one
            raise InputError(f"seed={self.seed} must lie in {-(2**63)}…{2**63 - 2}.")
        if not 0 <= self.spread < math.inf:
            raise InputError(f"spread={self.spread} is an amount of noise: take 0 or more.")


def exclusive_or() -> Mixture:
    """Two classes at opposite ends of two axes: no linear classifier beats log 2."""
    return Mixture(features=torch.tensor([[[1.0, 0.0], [-1.0, 0.0]], [[0.0, 1.0], [0.0, -1.0]]]))


def two_classes() -> Mixture:
    """Features at ±1.3 in one class, at π in the other: linearly separable."""
    angles_KP = torch.tensor([[1.3, -1.3], [math.pi, math.pi]], dtype=torch.float64)
    return Mixture(features=torch.stack([angles_KP.cos(), angles_KP.sin()], dim=-1))


def sweep(config: SweepConfig) -> dict[str, Any]:
    """All measurements: deviations over n, m and M, their tail; Lemma B.3, complexity, O(·) terms over M."""
    mixture = random_mixture(
        config.classes, config.points, config.dimensions, config.spread, seed=config.seed
    )
    base = Setting(N=config.N, n=config.n, m=config.m)
    powers = [4, 16, 64, 256, 1024]
    return {
        "n": [_deviation(mixture, replace(base, n=n), config) | {"value": n} for n in powers],
        "m": [_deviation(mixture, replace(base, m=m), config) | {"value": m} for m in [1, *powers]],
        "M": [_deviation(mixture, replace(base, M=M), config) | {"value": M} for M in POSITIVES],
        "tail": _tail(mixture, base, config),
        "lemma": {"two classes": _lemma(two_classes()), "exclusive or": _lemma(exclusive_or())},
        "complexity": _complexities(config),
        "order": _orders(config),
    }


def _deviation(mixture: Mixture, setting: Setting, config: SweepConfig) -> dict[str, float]:
    signed_S = deviations(mixture, setting, config.draws, seed=config.seed)
    plain_S = deviations(mixture, replace(setting, estimator="g0"), config.draws, seed=config.seed)
    where: dict[str, Any] = {"n": setting.n, "m": setting.m, "tau_plus": 1 / config.classes}
    return {
        "gap": signed_S.mean().abs().item(),
        "gap_error": signed_S.std().item() / math.sqrt(config.draws),
        "spread": signed_S.abs().mean().item(),
        "plain_gap": plain_S.mean().abs().item(),
        "paper": debiasing_gap(**where),
        "proved": proved_debiasing_gap(**where),
    }


def _tail(mixture: Mixture, setting: Setting, config: SweepConfig) -> Rows:
    delta_S = deviations(mixture, setting, config.draws, seed=config.seed).abs()
    where: dict[str, Any] = {"n": setting.n, "m": setting.m, "tau_plus": 1 / config.classes}
    return [
        {
            "value": epsilon,
            "measured": (delta_S >= epsilon).double().mean().item(),
            "paper": min(1.0, deviation_tail(epsilon, **where)),
            "proved": min(1.0, proved_deviation_tail(epsilon, **where)),
        }
        for epsilon in (0.02 * step for step in range(1, 76))
    ]


def _lemma(mixture: Mixture) -> Rows:
    fixed = {"sup": supervised_loss(mixture), "sup_mean": mean_classifier_loss(mixture)}
    K = mixture.classes
    return [
        fixed
        | {
            "value": M,
            "unbiased": unbiased_loss(mixture, K - 1, M),
            "unbiased_enough": unbiased_loss(mixture, negatives_for_supervision(K, M), M),
        }
        for M in POSITIVES
    ]


def _complexities(config: SweepConfig) -> Rows:
    base = Setting(N=config.N, n=32, m=4)
    rows = []
    for M in POSITIVES:
        row: dict[str, float] = {"value": M}
        for denominator in ("MN", "N"):
            losses_FT = loss_class(
                replace(base, M=M, denominator=denominator), encoders=ENCODERS, T=ANCHORS, seed=config.seed
            )
            row[denominator], row[f"{denominator}_error"] = complexity(losses_FT)
        rows.append(row)
    return rows


def _orders(config: SweepConfig) -> Rows:
    """What stands inside the O(·) of Theorems B.4 and 3.1, with R_S(F) measured: for ratios alone."""
    features = feature_class(encoders=ENCODERS, T=ANCHORS, seed=config.seed)
    shared: dict[str, Any] = {
        "N": config.N,
        "T": ANCHORS,
        "delta": config.delta,
        "rademacher": complexity(features)[0],
    }
    debiased: dict[str, Any] = {"n": config.n, "m": config.m, "tau_plus": 1 / config.classes}
    return [
        {
            "value": M,
            **asdict(bound := generalisation_debiased(**shared, **debiased, M=M)),
            "debiased": bound.total,
            "plain": generalisation_nca(**shared, M=M).total,
        }
        for M in POSITIVES
    ]
