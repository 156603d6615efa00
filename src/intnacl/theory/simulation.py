"""A mixture whose classes are known: its exact losses, and draws from it to compare with the bounds.

K classes, equally likely, of P unit-norm features each, equally likely: expectations over p, p_x⁺ and p_x⁻
are finite sums, and those over M positives are sums over multisets.

Shapes: K classes, P points a class, D dimensions, X = K·P points, C multisets of M positives; S draws, n and
m points of the estimator G; F encoders with E outputs, T anchors.
"""

import math
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, one_hot

from intnacl.errors import InputError, check_choice

# Kernel values gathered at once: 64 MiB of float64.
CHUNK = 2**23
# Classes of the data behind `loss_class` and `feature_class`.
CLASSES = 4
# Positives drawn for every anchor of `loss_class`, of which a setting takes its first M.
MOST_POSITIVES = 64


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
        return normalize(self.features.double(), dim=-1)

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
    """Draw directions around K random centres: `spread` 0 collapses a class, large values mix the classes."""
    generator = torch.Generator().manual_seed(seed)
    centres_K1D = torch.randn(classes, 1, dimensions, generator=generator)
    noise_KPD = torch.randn(classes, points, dimensions, generator=generator)
    return Mixture(features=centres_K1D + spread * noise_KPD)


def unbiased_loss(mixture: Mixture, N: float, M: int = 1, denominator: str = "MN") -> float:
    """L_Unbiased = E[−log Σ_j h(x,x_j⁺) / (Σ_j h(x,x_j⁺) + M·N·E h(x,x⁻))], Appendix B, exactly.

    The paper's definition of the loss lacks the minus sign, but its proofs have it. `denominator` "N" uses N
    instead of M·N, as the main text does.
    """
    check_choice("denominator", denominator, ("N", "MN"))
    if not (N > 0 and M >= 1):
        raise InputError(f"N={N}, M={M}: give an N above 0 and an M of 1 or more.")
    own_XP = mixture.own_XP
    points = own_XP.shape[1]
    # How often each point occurs in each multiset of M positives, and the probability of the multiset.
    draws_CM = torch.tensor(list(combinations_with_replacement(range(points), M)))
    counts_CP = one_hot(draws_CM, points).sum(1).double()
    log_orders_C = math.lgamma(M + 1) - torch.lgamma(counts_CP + 1).sum(1)
    probability_C = (log_orders_C - M * math.log(points)).exp()

    sum_XC = own_XP @ counts_CP.T
    factor = M * N if denominator == "MN" else N
    loss_XC = torch.log1p(factor * mixture.negative_X[:, None] / sum_XC)
    return float((loss_XC @ probability_C).mean())


def mean_classifier_loss(mixture: Mixture) -> float:
    """L_Sup^μ: cross-entropy of the classifier whose weights are the class means μ_c = E_{x~c} f(x)/t."""
    logits_XK = mixture.z_KPD.flatten(0, 1) @ mixture.z_KPD.mean(1).T / mixture.temperature
    return cross_entropy(logits_XK, mixture.labels_X).item()


def supervised_loss(mixture: Mixture) -> float:
    """L_Sup = inf_W cross-entropy of W f(x): a convex problem, minimised from W = 0."""
    z_XD, labels_X = mixture.z_KPD.flatten(0, 1), mixture.labels_X
    shape = (mixture.classes, z_XD.shape[1])

    def loss_and_gradient(flat: object) -> tuple[float, object]:
        W_KD = torch.as_tensor(flat).reshape(shape).requires_grad_()
        loss = cross_entropy(z_XD @ W_KD.T, labels_X)
        (gradient_KD,) = torch.autograd.grad(loss, W_KD)
        return loss.item(), gradient_KD.flatten().numpy()

    start = np.zeros(math.prod(shape))
    return float(minimize(loss_and_gradient, start, jac=True, method="L-BFGS-B", options={"gtol": 1e-9}).fun)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The numbers of Theorem B.1, and the form of the loss."""

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
        """The factor of G: M·N in the proofs, N in the main text."""
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
    """Loss with G minus loss with E h⁻, one value for each draw of (x, x_j⁺, u_i, v_i), (S,) in float64.

    |mean| is the left side of Theorem B.1; |each| is the Δ of Lemma B.2.
    """
    generator = torch.Generator().manual_seed(seed)
    kernel_XX, own_XP, negative_X = mixture.kernel_XKP.flatten(1), mixture.own_XP, mixture.negative_X
    points, class_points = own_XP.shape
    rows = max(1, CHUNK // max(setting.n, setting.m, setting.M))
    chunks = []
    for first in range(0, draws, rows):
        S = min(rows, draws - first)
        x_S = torch.randint(points, (S,), generator=generator)
        sum_S = own_XP[x_S[:, None], torch.randint(class_points, (S, setting.M), generator=generator)].sum(1)
        u_Sn = kernel_XX[x_S[:, None], torch.randint(points, (S, setting.n), generator=generator)]
        v_Sm = own_XP[x_S[:, None], torch.randint(class_points, (S, setting.m), generator=generator)]
        G_S = estimate(u_Sn, v_Sm, setting.estimator, 1 / mixture.classes, mixture.temperature)
        chunks.append(
            log_ratio(sum_S, G_S, setting.factor) - log_ratio(sum_S, negative_X[x_S], setting.factor)
        )
    return torch.cat(chunks)


def loss_class(setting: Setting, *, encoders: int, T: int, seed: int = 0) -> Tensor:
    """Losses of F random linear encoders f(x) = Wx/‖Wx‖ on one sample of T anchors, (F, T).

    Only the sample depends on `seed`; encoders and class centres are always the same. A larger M adds
    positives to the same anchors, so that settings can be compared.
    """
    if setting.M > MOST_POSITIVES:
        raise InputError(f"M={setting.M}: a sample has at most {MOST_POSITIVES} positives for each anchor.")
    W_FED, centres_KD, generator = _encoders(encoders, seed)
    label_T = torch.randint(CLASSES, (T,), generator=generator)
    x_TD = _around(centres_KD[label_T], generator)
    v_TmD = _around(centres_KD[label_T[:, None].expand(T, setting.m)], generator)
    u_TnD = _around(centres_KD[torch.randint(CLASSES, (T, setting.n), generator=generator)], generator)
    positive_TMD = _around(centres_KD[label_T[:, None].expand(T, MOST_POSITIVES)], generator)[:, : setting.M]
    losses_FT = []
    for W_ED in W_FED:
        z_TE1 = normalize(x_TD @ W_ED.T, dim=-1)[:, :, None]
        positive_TM, u_Tn, v_Tm = (
            (normalize(points @ W_ED.T, dim=-1) @ z_TE1).squeeze(2).exp()
            for points in (positive_TMD, u_TnD, v_TmD)
        )
        G_T = estimate(u_Tn, v_Tm, setting.estimator, 1 / CLASSES, 1.0)
        losses_FT.append(log_ratio(positive_TM.sum(1), G_T, setting.factor))
    return torch.stack(losses_FT)


def feature_class(*, encoders: int, T: int, seed: int = 0) -> Tensor:
    """The features f(x_t) of the same encoders on the same anchors, (F, T·E): R_S(F) is their complexity."""
    W_FED, centres_KD, generator = _encoders(encoders, seed)
    x_TD = _around(centres_KD[torch.randint(CLASSES, (T,), generator=generator)], generator)
    return torch.stack([normalize(x_TD @ W_ED.T, dim=-1).flatten() for W_ED in W_FED])


def _encoders(encoders: int, seed: int) -> tuple[Tensor, Tensor, torch.Generator]:
    """Return weights (F, E, D) and class centres (K, D), which are fixed, and a generator for the sample."""
    dimensions, features = 8, 4
    generator = torch.Generator().manual_seed(0)
    W_FED = torch.randn(encoders, features, dimensions, generator=generator, dtype=torch.float64)
    centres_KD = torch.randn(CLASSES, dimensions, generator=generator, dtype=torch.float64)
    return W_FED, centres_KD, generator.manual_seed(seed + 1)


def _around(centres: Tensor, generator: torch.Generator) -> Tensor:
    return centres + torch.randn(*centres.shape, generator=generator, dtype=torch.float64)


def complexity(values_FT: Tensor, draws: int = 1000, *, seed: int = 0) -> tuple[float, float]:
    """R_S(G) = E_σ sup_g Σ_t σ_t g(x_t), unnormalised as in the paper, and the estimate's standard error.

    The Rademacher complexity of a finite class of functions, by Monte Carlo.

    Args:
        values_FT: g(x_t) of each function at each point; features f(x_t) ∈ R^D count as T·D values.
        draws: Draws of the signs σ ∈ {−1, 1}^T.
        seed: Seed of the signs.
    """
    if values_FT.ndim != 2 or draws < 2:
        raise InputError(
            f"values {tuple(values_FT.shape)}, draws={draws}: give (functions, points) and 2 or more."
        )
    generator = torch.Generator().manual_seed(seed)
    signs_ST = torch.randint(0, 2, (draws, values_FT.shape[1]), generator=generator).to(values_FT) * 2 - 1
    # Subtracting what all functions share leaves the mean unchanged and removes most of its noise.
    suprema_S = (signs_ST @ (values_FT - values_FT.mean(0)).T).amax(1)
    return suprema_S.mean().item(), suprema_S.std().item() / draws**0.5
