"""A mixture with known classes, small enough that every loss of the theory can be computed exactly.

K classes, equally likely, of P unit-norm features each, equally likely: expectations over p, p_x⁺ and p_x⁻
are finite sums, and those over M positives are sums over multisets.

Shapes: K classes, P points a class, D dimensions, X = K·P points, C multisets of M positives.
"""

import math
from dataclasses import dataclass
from itertools import combinations_with_replacement

import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import cross_entropy

from intnacl.errors import InputError, check_choice


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """The features of every point and the temperature."""

    features: Tensor
    """(K, P, D); f(x) is their direction."""
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.features.ndim != 3 or len(self.features) < 2:
            raise InputError(
                f"features have shape {tuple(self.features.shape)}: give (classes ≥ 2, points, dimensions)."
            )
        if not self.features.isfinite().all():
            raise InputError("features hold numbers that are not finite.")
        if not self.temperature > 0:
            raise InputError(f"temperature={self.temperature} must be above 0.")

    @property
    def z_KPD(self) -> Tensor:
        """f(x), of norm 1, in float64."""
        return torch.nn.functional.normalize(self.features.double(), dim=-1)

    @property
    def classes(self) -> int:
        """K; the share of a class is τ⁺ = 1/K."""
        return len(self.features)

    @property
    def labels_X(self) -> Tensor:
        """The class of each point, (X,)."""
        return torch.arange(self.classes).repeat_interleave(self.features.shape[1])

    @property
    def kernel_XKP(self) -> Tensor:
        """h(x, y) = e^{f(x)·f(y)/t} of each point with each point, (X, K, P)."""
        return (torch.einsum("xd,kpd->xkp", self.z_KPD.flatten(0, 1), self.z_KPD) / self.temperature).exp()

    @property
    def own_XP(self) -> Tensor:
        """h(x, x⁺) for every x⁺ of the class of x, x itself among them, (X, P)."""
        return self.kernel_XKP[torch.arange(len(self.labels_X)), self.labels_X]

    @property
    def negative_X(self) -> Tensor:
        """E_{x⁻ ~ p_x⁻} h(x, x⁻), the mean over the other classes, (X,)."""
        mean_XK = self.kernel_XKP.mean(2)
        return (mean_XK.sum(1) - self.own_XP.mean(1)) / (self.classes - 1)


def random_mixture(classes: int, points: int, dimensions: int, spread: float, *, seed: int) -> Mixture:
    """Directions around K random centres: `spread` 0 collapses a class, large values mix the classes."""
    generator = torch.Generator().manual_seed(seed)
    centres_K1D = torch.randn(classes, 1, dimensions, generator=generator)
    noise_KPD = torch.randn(classes, points, dimensions, generator=generator)
    return Mixture(features=centres_K1D + spread * noise_KPD)


def _multisets(points: int, size: int) -> tuple[Tensor, Tensor]:
    """How often each of P points occurs in each multiset of M draws, (C, P), and its probability, (C,)."""
    draws_CM = torch.tensor(list(combinations_with_replacement(range(points), size)))
    counts_CP = torch.nn.functional.one_hot(draws_CM, points).sum(1).double()
    log_orders_C = math.lgamma(size + 1) - torch.lgamma(counts_CP + 1).sum(1)
    return counts_CP, (log_orders_C - size * math.log(points)).exp()


def unbiased_loss(mixture: Mixture, N: float, M: int = 1, denominator: str = "MN") -> float:
    """L_Unbiased = E[−log Σ_j h(x,x_j⁺) / (Σ_j h(x,x_j⁺) + M·N·E h(x,x⁻))], Appendix B, exactly.

    The minus, absent where the paper defines the loss, is there in its proofs. `denominator` "N" writes N for
    M·N, as the main text does.
    """
    check_choice("denominator", denominator, ("N", "MN"))
    if not (N > 0 and M >= 1):
        raise InputError(f"N={N}, M={M}: take N above 0 and M of 1 or more.")
    counts_CP, probability_C = _multisets(mixture.own_XP.shape[1], M)
    sum_XC = mixture.own_XP @ counts_CP.T
    factor = M * N if denominator == "MN" else N
    loss_XC = torch.log1p(factor * mixture.negative_X[:, None] / sum_XC)
    return float((loss_XC @ probability_C).mean())


def mean_classifier_loss(mixture: Mixture) -> float:
    """L_Sup^μ: cross-entropy of the classifier whose weights are the class means μ_c = E_{x~c} f(x)/t."""
    logits_XK = mixture.z_KPD.flatten(0, 1) @ mixture.z_KPD.mean(1).T / mixture.temperature
    return cross_entropy(logits_XK, mixture.labels_X).item()


def supervised_loss(mixture: Mixture) -> float:
    """L_Sup = inf_W cross-entropy of W f(x): a convex problem, solved from W = 0, so from above."""
    z_XD, labels_X = mixture.z_KPD.flatten(0, 1), mixture.labels_X
    shape = (mixture.classes, z_XD.shape[1])

    def _loss_and_gradient(flat: object) -> tuple[float, object]:
        W_KD = torch.as_tensor(flat).reshape(shape).requires_grad_()
        loss = cross_entropy(z_XD @ W_KD.T, labels_X)
        (gradient_KD,) = torch.autograd.grad(loss, W_KD)
        return loss.item(), gradient_KD.flatten().numpy()

    start = torch.zeros(shape, dtype=torch.float64).flatten().numpy()
    return float(minimize(_loss_and_gradient, start, jac=True, method="L-BFGS-B", options={"gtol": 1e-9}).fun)
