"""The theory's inequalities, measured over n, m, M and ε on one synthetic mixture, as numbers ready to plot.

A list of rows holds one dict for each setting. Measured: `gap` = |mean of the deviations|, the left side of
Theorem B.1, and `spread` = mean Δ, which its proof bounds. Bounds: `paper` as stated, `proved`
as in docs/theory.md.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Literal, TypedDict

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
from intnacl.theory.simulation import (
    Mixture,
    Setting,
    complexity,
    deviations,
    feature_class,
    loss_class,
    mean_classifier_loss,
    random_mixture,
    supervised_loss,
    unbiased_loss,
)

Rows = list[dict[str, float]]
VARIED: tuple[Literal["n", "m", "M"], ...] = ("n", "m", "M")
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
    """Dimensions of the features."""
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
    """Draws for each setting."""
    seed: int = 0
    """Seed of the mixture and the draws."""

    def __post_init__(self) -> None:
        for name, least in (("classes", 2), ("points", 1), ("dimensions", 1), ("draws", 2)):
            check_count(name, getattr(self, name), least)
        if not 0 < self.delta < 1:
            raise InputError(f"delta={self.delta} is a probability: it must lie strictly between 0 and 1.")
        if not -(2**63) <= self.seed < 2**63 - 1:  # torch's range; the sample is drawn with seed + 1
            raise InputError(f"seed={self.seed} must lie in {-(2**63)}…{2**63 - 2}.")
        if not 0 <= self.spread < math.inf:
            raise InputError(f"spread={self.spread} is an amount of noise: give 0 or more.")


class Sweep(TypedDict):
    """All measurements of a sweep; a row's `value` is the quantity that varies in its list."""

    n: Rows
    m: Rows
    M: Rows
    """Deviations from the unbiased loss."""
    tail: Rows
    """P(Δ ≥ ε) over ε."""
    lemma: dict[str, Rows]
    """Lemma B.3 over M, for each of two mixtures."""
    complexity: Rows
    """Rademacher complexity of the losses over M, with both denominators."""
    order: Rows
    """The terms inside the O(·) of Theorems B.4 and 3.1 over M."""


def exclusive_or() -> Mixture:
    """Place two classes at opposite ends of two axes (XOR): no linear classifier beats log 2."""
    return Mixture(features=torch.tensor([[[1.0, 0.0], [-1.0, 0.0]], [[0.0, 1.0], [0.0, -1.0]]]))


def two_classes() -> Mixture:
    """Place one class at ±1.3 on the circle, the other at π: linearly separable."""
    angles_KP = torch.tensor([[1.3, -1.3], [math.pi, math.pi]], dtype=torch.float64)
    return Mixture(features=torch.stack([angles_KP.cos(), angles_KP.sin()], dim=-1))


def sweep(config: SweepConfig) -> Sweep:
    """Measure the deviations and their tail, Lemma B.3, the complexity of the losses, and the O(·) terms."""
    mixture = random_mixture(
        config.classes, config.points, config.dimensions, config.spread, seed=config.seed
    )
    base = Setting(N=config.N, n=config.n, m=config.m)
    powers = [4, 16, 64, 256, 1024]

    n, m, tau_plus = base.n, base.m, 1 / config.classes
    delta_S = deviations(mixture, base, config.draws, seed=config.seed).abs()
    tail = [
        {
            "value": epsilon,
            "measured": (delta_S >= epsilon).double().mean().item(),
            "paper": min(1.0, deviation_tail(epsilon, n=n, m=m, tau_plus=tau_plus)),
            "proved": min(1.0, proved_deviation_tail(epsilon, n=n, m=m, tau_plus=tau_plus)),
        }
        for epsilon in (0.02 * step for step in range(1, 76))
    ]

    complexities: Rows = []
    for M in POSITIVES:
        row: dict[str, float] = {"value": M}
        for denominator in ("MN", "N"):
            setting = Setting(N=config.N, M=M, n=32, m=4, denominator=denominator)
            losses_FT = loss_class(setting, encoders=ENCODERS, T=ANCHORS, seed=config.seed)
            row[denominator], row[f"{denominator}_error"] = complexity(losses_FT)
        complexities.append(row)

    # The terms inside O(·), with R_S(F) measured: only ratios between rows are meaningful.
    R, _ = complexity(feature_class(encoders=ENCODERS, T=ANCHORS, seed=config.seed))
    N, T, delta = config.N, ANCHORS, config.delta
    order: Rows = []
    for M in POSITIVES:
        plain = generalisation_nca(N=N, M=M, T=T, delta=delta, rademacher=R)
        debiased = generalisation_debiased(
            N=N, M=M, n=n, m=m, tau_plus=tau_plus, T=T, delta=delta, rademacher=R
        )
        order.append({"value": M} | asdict(debiased) | {"debiased": debiased.total, "plain": plain.total})

    return {
        "n": [_deviation(mixture, replace(base, n=k), config) | {"value": k} for k in powers],
        "m": [_deviation(mixture, replace(base, m=k), config) | {"value": k} for k in [1, *powers]],
        "M": [_deviation(mixture, replace(base, M=M), config) | {"value": M} for M in POSITIVES],
        "tail": tail,
        "lemma": {"two classes": _lemma(two_classes()), "exclusive or": _lemma(exclusive_or())},
        "complexity": complexities,
        "order": order,
    }


def _deviation(mixture: Mixture, setting: Setting, config: SweepConfig) -> dict[str, float]:
    signed_S = deviations(mixture, setting, config.draws, seed=config.seed)
    plain_S = deviations(mixture, replace(setting, estimator="g0"), config.draws, seed=config.seed)
    n, m, tau_plus = setting.n, setting.m, 1 / config.classes
    return {
        "gap": signed_S.mean().abs().item(),
        "gap_error": signed_S.std().item() / math.sqrt(config.draws),
        "spread": signed_S.abs().mean().item(),
        "plain_gap": plain_S.mean().abs().item(),
        "paper": debiasing_gap(n=n, m=m, tau_plus=tau_plus),
        "proved": proved_debiasing_gap(n=n, m=m, tau_plus=tau_plus),
    }


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
