"""The losses of the paper written as loops over rows, in Python floats: slow, plain, and independent.

`family` is the whole framework with its keywords. The functions after it are the losses of the paper's Table
1, each written from its own equation without these keywords.
"""

import math

from torch import Tensor

Rows = list[list[float]]


def unit_rows(*views: Tensor) -> Rows:
    rows = [row for view in views for row in view.detach().double().tolist()]
    return [[v / math.sqrt(sum(u * u for u in row)) for v in row] for row in rows]


def kappa(a: list[float], b: list[float], t: float) -> float:
    return math.exp(sum(u * v for u, v in zip(a, b, strict=True)) / t)


def estimate(
    name: str, negatives: list[float], positives: list[float], t: float, tau: float, beta: float
) -> float:
    """g0, g1 or g2 of n negatives and m positives, as the paper's table of definitions states them."""
    n, m = len(negatives), len(positives)
    if name == "g0":
        return sum(negatives) / n
    share = tau * sum(positives) / m
    if name == "g1":
        return max((sum(negatives) / n - share) / (1 - tau), math.exp(-1 / t))
    weighted = sum(k ** (beta + 1) for k in negatives) / sum(k**beta for k in negatives)
    return max((weighted - share) / (1 - tau), math.exp(-1 / t))


def pair_rows(
    first: Tensor, second: Tensor, g: str, t: float, tau: float, beta: float
) -> list[tuple[float, float]]:
    """Return (κ_pos, N·G) of each of the 2B rows."""
    z = unit_rows(first, second)
    b = len(first)
    result = []
    for i, row in enumerate(z):
        twin = (i + b) % (2 * b)
        negatives = [kappa(row, z[j], t) for j in range(2 * b) if j not in (i, twin)]
        positive = kappa(row, z[twin], t)
        result.append((positive, len(negatives) * estimate(g, negatives, [positive], t, tau, beta)))
    return result


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def minus_log_share(positive: float, rest: float) -> float:
    return -math.log(positive / (positive + rest))


def family(
    z0: Tensor, z1: Tensor, extra: list[Tensor], mixed: list[Tensor], adversarial: Tensor | None, *,
    nacl: str, negatives: str, lam: float = 0.5, alpha: float = 0.0, robust_negatives: str | None = None,
    weight: str | list[float] = "loss", temperature: float = 0.5, tau_plus: float = 0.01, beta: float = 1.0,
    denominator: str = "N", mix_negatives: str = "pair",
) -> float:  # fmt: skip
    """L_NaCl(G¹, M, λ) + α L_Robust(G², w), with w given by name or as a value for each image."""
    numbers = (temperature, tau_plus, beta)
    clean = pair_rows(z0, z1, negatives, *numbers)
    if nacl == "nca":
        total = mean(nca_rows(z0, z1, extra, clean, temperature, denominator))
    else:
        total = mean([minus_log_share(*row) for row in clean])
        parts = [mean(mix_rows(z0, m, clean, negatives, lam, numbers, mix_negatives)) for m in mixed]
        total += mean(parts) if parts else 0.0
    if alpha:
        g = robust_negatives or negatives
        w = [1.0 if weight == "one" else minus_log_share(*row) for row in pair_rows(z0, z1, g, *numbers)]
        w = [*weight, *weight] if isinstance(weight, list) else w  # w(x) of each image, for both of its rows
        w = [wi / mean(w) for wi in w] if weight == "relative" else w
        attacked = pair_rows(z0, adversarial, g, *numbers)
        total += alpha * mean([wi * minus_log_share(*row) for wi, row in zip(w, attacked, strict=True)])
    return total


def nca_rows(
    z0: Tensor, z1: Tensor, extra: list[Tensor], clean: list[tuple[float, float]], t: float, denominator: str
) -> list[float]:
    z, others, b, rows = unit_rows(z0, z1), [unit_rows(e) for e in extra], len(z0), []
    for i, (positive, rest) in enumerate(clean):
        total = positive + sum(kappa(z[i], e[i % b], t) for e in others)
        rows.append(minus_log_share(total, rest * (1 + len(extra)) if denominator == "MN" else rest))
    return rows


def mix_rows(
    z0: Tensor, mixed: Tensor, clean, negatives: str, lam: float, numbers, mix_negatives: str
) -> list[float]:
    if mix_negatives == "pair":
        rows = pair_rows(z0, mixed, negatives, *numbers)
    else:
        rows = [
            (kappa(a, m, numbers[0]), rest)
            for a, m, (_, rest) in zip(unit_rows(z0), unit_rows(mixed), clean[: len(z0)], strict=True)
        ]
    omegas = [positive / (positive + rest) for positive, rest in rows]
    return [-lam * math.log(omega) - (1 - lam) * math.log(1 - omega) for omega in omegas]


# ---- The rows of Table 1, from their own equations (t = 0.5, τ⁺ = 0.01, β = 1 as in the experiments) ----


def simclr(z0: Tensor, z1: Tensor, t: float = 0.5) -> float:
    """Eq. 1: the softmax of the positive among all other rows."""
    z, b, total = unit_rows(z0, z1), len(z0), 0.0
    for i, row in enumerate(z):
        all_others = sum(kappa(row, z[j], t) for j in range(2 * b) if j != i)
        total += math.log(all_others / kappa(row, z[(i + b) % (2 * b)], t))
    return total / (2 * b)


def debiased(z0: Tensor, z1: Tensor, t: float = 0.5, tau: float = 0.01) -> float:
    """Eq. 3."""
    z, b, total = unit_rows(z0, z1), len(z0), 0.0
    for i, row in enumerate(z):
        positive = kappa(row, z[(i + b) % (2 * b)], t)
        negatives = sum(kappa(row, z[j], t) for j in range(2 * b) if j % b != i % b)
        n = 2 * b - 2
        rest = max((negatives - n * tau * positive) / (1 - tau), n * math.exp(-1 / t))
        total += math.log(1 + rest / positive)
    return total / (2 * b)


def hard_rest(row: list[float], negatives: Rows, positive: float, t: float, tau: float, beta: float) -> float:
    """N·g2 by importance weights: each negative counts κ^β / mean κ^β times."""
    weights = [kappa(row, other, t) ** beta for other in negatives]
    scale = sum(weights) / len(weights)
    total = sum(w / scale * kappa(row, other, t) for w, other in zip(weights, negatives, strict=True))
    return max((total - len(negatives) * tau * positive) / (1 - tau), len(negatives) * math.exp(-1 / t))


def hard_rows(z0: Tensor, z1: Tensor, t: float = 0.5, tau: float = 0.01, beta: float = 1.0) -> list[float]:
    """Eq. 4, row by row."""
    z, b, rows = unit_rows(z0, z1), len(z0), []
    for i, row in enumerate(z):
        positive = kappa(row, z[(i + b) % (2 * b)], t)
        rest = hard_rest(row, [z[j] for j in range(2 * b) if j % b != i % b], positive, t, tau, beta)
        rows.append(math.log(1 + rest / positive))
    return rows


def adv(z0: Tensor, z1: Tensor, za: Tensor) -> float:
    """Eq. 5 with α = 1."""
    return simclr(z0, z1) + simclr(z0, za)


def intcl(z0: Tensor, z1: Tensor, za: Tensor) -> float:
    """Section 3.3 with G¹ = G² = g2 and w = ŵ."""
    clean, attacked = hard_rows(z0, z1), hard_rows(z0, za)
    return mean(clean) + mean([w * loss for w, loss in zip(clean, attacked, strict=True)])


def intnacl(z0: Tensor, z1: Tensor, mixed: list[Tensor], za: Tensor) -> float:
    """Eq. 9 with MIXNCA(g2, M, 0.5) and L_Robust(g2, ŵ): with λ = ½ a mixed pair costs −½ log Ω(1 − Ω)."""
    parts = []
    for m in mixed:
        omegas = [math.exp(-loss) for loss in hard_rows(z0, m)]
        parts.append(mean([-0.5 * math.log(omega * (1 - omega)) for omega in omegas]))
    return intcl(z0, z1, za) + mean(parts)
