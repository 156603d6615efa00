"""The right-hand sides of the paper's generalisation theory as functions of measurable quantities, at t = 1.

N: weight of the negative term; M: positives of an anchor; n, m: points that estimate E_p h and E_{p⁺} h;
τ⁺ = 1 − τ⁻: share of the anchor's class; T: anchors in the sample; δ: failure probability; R: a Rademacher
complexity, unnormalised (E sup Σ_t: the paper divides it by T). Bounds inside an O(·) come as `OrderBound`.

Where the paper's constant does not follow from its own proof, a second function, named `proved_…`, gives one
that does; docs/theory.md holds the arguments.
"""

import math
from dataclasses import dataclass

from intnacl.errors import InputError


def _check(
    *,
    tau_plus: float = 0.0,
    delta: float = 0.5,
    temperature: float = 1.0,
    rademacher: float = 0.0,
    largest: float = 0.0,
    epsilon: float = 0.0,
    **counts: float,
) -> None:
    """Raise for a probability, an amount or a count outside its range."""
    if not 0 <= tau_plus < 1:
        raise InputError(f"tau_plus={tau_plus} is the share of one class: it must be 0 or more and below 1.")
    if not 0 < delta < 1:
        raise InputError(f"delta={delta} is a probability of failure: it must lie strictly between 0 and 1.")
    if not temperature > 0:
        raise InputError(f"temperature={temperature} must be above 0.")
    for name, value in {"rademacher": rademacher, "largest": largest, "epsilon": epsilon}.items():
        if not value >= 0:
            raise InputError(f"{name}={value} cannot be negative.")
    for name, value in counts.items():
        if not value >= 1:
            raise InputError(f"{name}={value} is a number of points: it must be 1 or more.")


def debiasing_gap(*, n: int, m: int, tau_plus: float) -> float:
    """Theorem B.1, any N, M: |L_Unbiased − L_Debiased| ≤ e^{3/2}/τ⁻ √(π/2n) + e^{3/2} τ⁺/τ⁻ √(π/2m)."""
    _check(tau_plus=tau_plus, n=n, m=m)
    constant = math.exp(1.5) / (1 - tau_plus)
    return constant * (math.sqrt(math.pi / (2 * n)) + tau_plus * math.sqrt(math.pi / (2 * m)))


def proved_debiasing_gap(*, n: int, m: int, tau_plus: float, temperature: float = 1.0) -> float:
    """E Δ ≤ (e^{2/t} − 1)/2 · √(1/n + τ⁺²/m) / τ⁻: smaller than Theorem B.1 for every n, m and τ⁺.

    Δ ≤ e^{1/t}|G − E h⁻|; clamping G from below takes it no further from E h⁻ ≥ e^{−1/t}; and a variable
    between e^{−1/t} and e^{1/t} has a standard deviation of at most half that range.
    """
    _check(tau_plus=tau_plus, temperature=temperature, n=n, m=m)
    return math.expm1(2 / temperature) / 2 * _spread(n, m, tau_plus)


def deviation_tail(epsilon: float, *, n: int, m: int, tau_plus: float) -> float:
    """Lemma B.2, fixed x and x⁺: P(Δ ≥ ε) ≤ 2 exp(−n ε² τ⁻²/2e³) + 2 exp(−m ε² (τ⁻/τ⁺)²/2e³)."""
    _check(tau_plus=tau_plus, epsilon=epsilon, n=n, m=m)
    rate = (epsilon * (1 - tau_plus)) ** 2 / (2 * math.exp(3))
    positives = 2 * math.exp(-m * rate / tau_plus**2) if tau_plus > 0 else 0.0
    return 2 * math.exp(-n * rate) + positives


def proved_deviation_tail(
    epsilon: float, *, n: int, m: int, tau_plus: float, temperature: float = 1.0
) -> float:
    """P(Δ ≥ ε) ≤ 2 exp(−2 ε² τ⁻² / ((e^{2/t} − 1)² (1/n + τ⁺²/m))).

    This applies Hoeffding's inequality once, to the weighted sum of all n + m terms, not to its two halves.
    """
    _check(tau_plus=tau_plus, temperature=temperature, epsilon=epsilon, n=n, m=m)
    return 2 * math.exp(-2 * (epsilon / (math.expm1(2 / temperature) * _spread(n, m, tau_plus))) ** 2)


def _spread(n: int, m: int, tau_plus: float) -> float:
    """√(1/n + τ⁺²/m) / τ⁻: the scale of the sampling noise of G, from n and m points."""
    return math.sqrt(1 / n + tau_plus**2 / m) / (1 - tau_plus)


def negatives_for_supervision(classes: int, positives: int = 1, temperature: float = 1.0) -> float:
    """The smallest N for which L_Sup ≤ L_Sup^μ ≤ L_Unbiased is proved, with M·N in the denominator.

    It is K − 1 for M = 1 (Lemma B.3). For M ≥ 2 the lemma's use of Jensen's inequality fails, and
    e^{1/(2t²)}(K − 1) suffices: the loss is convex in the mean of the positives, and Hoeffding's lemma gives
    E e^s ≤ e^{E s + 1/(2t²)} for |s| ≤ 1/t. With N·G instead of M·N·G, M times as many are needed.
    """
    _check(temperature=temperature, positives=positives)
    if classes < 2:
        raise InputError(f"classes={classes}: a classification task has 2 or more.")
    slack = 0.0 if positives == 1 else 1 / (2 * temperature**2)
    return math.exp(slack) * (classes - 1)


@dataclass(frozen=True, kw_only=True)
class OrderBound:
    """The terms inside an O(·), whose constant is unknown: only ratios between settings are meaningful."""

    negatives: float
    """1/τ⁻ √(1/n), the noise of the negatives."""
    positives: float
    """τ⁺/τ⁻ √(1/m), the noise of the debiasing."""
    complexity: float
    """λ R/T."""
    confidence: float
    """B √(log(1/δ)/T)."""

    @property
    def total(self) -> float:
        """The whole argument of O(·)."""
        return self.negatives + self.positives + self.complexity + self.confidence


def complexity_factor(*, M: int, n: int, m: int, tau_plus: float) -> float:
    """λ of Theorem B.4, inside O(·): 1/M · √((m/n + 1)/τ⁻² + τ⁺²(n/m + 1)).

    This is the factor as the paper states it; docs/theory.md shows why the 1/M does not follow.
    """
    _check(tau_plus=tau_plus, M=M, n=n, m=m)
    return math.sqrt((m / n + 1) / (1 - tau_plus) ** 2 + tau_plus**2 * (n / m + 1)) / M


def generalisation_debiased(
    *, N: int, M: int, n: int, m: int, tau_plus: float, T: int, delta: float, rademacher: float
) -> OrderBound:
    """Theorem B.4, N ≥ K − 1: L_Sup(f̂) ≤ L_Debiased(f) + O(√(1/n)/τ⁻ + √(1/m) τ⁺/τ⁻ + λR/T + B√(log(1/δ)/T)).

    λ is `complexity_factor` and B = log N · (1/τ⁻ + τ⁺).
    """
    _check(tau_plus=tau_plus, delta=delta, rademacher=rademacher, N=N, M=M, n=n, m=m, T=T)
    tau_minus = 1 - tau_plus
    return OrderBound(
        negatives=math.sqrt(1 / n) / tau_minus,
        positives=tau_plus / tau_minus * math.sqrt(1 / m),
        complexity=complexity_factor(M=M, n=n, m=m, tau_plus=tau_plus) * rademacher / T,
        confidence=math.log(N) * (1 / tau_minus + tau_plus) * math.sqrt(math.log(1 / delta) / T),
    )


def generalisation_nca(*, N: int, M: int, T: int, delta: float, rademacher: float) -> OrderBound:
    """Theorem 3.1, N ≥ K − 1: L_Sup(f̂) ≤ L_NCA(g0, M)(f) + O(√(1/N) + R/(MT) + log N √(log(1/δ)/T))."""
    _check(delta=delta, rademacher=rademacher, N=N, M=M, T=T)
    return OrderBound(
        negatives=math.sqrt(1 / N),
        positives=0.0,
        complexity=rademacher / (M * T),
        confidence=math.log(N) * math.sqrt(math.log(1 / delta) / T),
    )


def jacobian_norm(*, M: int, n: int, m: int) -> float:
    """√(6(n+m)) e²/M: the bound on the norm of the Jacobian in the proof of Theorem B.4.

    The map goes from the features to a_i = h(x,u_i)/Σ_j h(x,x_j⁺) and b_i = h(x,v_i)/Σ_j h(x,x_j⁺).
    """
    _check(M=M, n=n, m=m)
    return math.sqrt(6 * (n + m)) * math.exp(2) / M


def largest_loss(*, N: int, tau_plus: float, temperature: float = 1.0) -> float:
    """log(1 + N e^{1/t} (e^{1/t} − τ⁺e^{−1/t})/τ⁻): no row of the loss with M·N·G exceeds it."""
    _check(tau_plus=tau_plus, temperature=temperature, N=N)
    top, floor = math.exp(1 / temperature), math.exp(-1 / temperature)
    return math.log1p(N * top * (top - tau_plus * floor) / (1 - tau_plus))


def uniform_deviation(*, rademacher: float, largest: float, T: int, delta: float) -> float:
    """2R/T + 3B √(log(4/δ)/2T): E g exceeds its sample mean by at most this for all g (proof of B.4).

    The bound fails with probability at most δ/2. R is the complexity of the losses g
    (`simulation.complexity`) and B, `largest`, their largest value.
    """
    _check(delta=delta, rademacher=rademacher, largest=largest, T=T)
    return 2 * rademacher / T + 3 * largest * math.sqrt(math.log(4 / delta) / (2 * T))
