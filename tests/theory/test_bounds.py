"""The bounds: values computed by hand, their order, flaws of the paper's proofs, and clear errors."""

import math
from typing import Any

import pytest
import torch

from intnacl.theory import bounds
from intnacl.theory.bounds import debiasing_gap, deviation_tail, generalisation_debiased, uniform_deviation
from mistakes import refused


def test_bounds_by_hand():
    hand = math.e**1.5 / 0.5 * (math.pi / 16) ** 0.5 + math.e**1.5 * (math.pi / 4) ** 0.5
    assert debiasing_gap(n=8, m=2, tau_plus=0.5) == pytest.approx(hand)
    hand = 2 * math.exp(-20 * 0.25 / (2 * math.e**3)) + 2 * math.exp(-5 / (2 * math.e**3))
    assert deviation_tail(1.0, n=20, m=5, tau_plus=0.5) == pytest.approx(hand)
    assert deviation_tail(1.0, n=20, m=1, tau_plus=0.0) == pytest.approx(2 * math.exp(-10 / math.e**3))
    hand = 0.2 + 6 * math.sqrt(math.log(100) / 200)
    assert uniform_deviation(rademacher=10, largest=2, T=100, delta=0.04) == pytest.approx(hand)
    top, floor, tau = math.e, 1 / math.e, 0.25
    G = (top - tau * floor) / (1 - tau)  # x⁺ and v opposite the anchor, u on it: the largest possible loss
    assert bounds.largest_loss(N=10, tau_plus=tau) == pytest.approx(-math.log(floor / (floor + 10 * G)))
    assert bounds.negatives_for_supervision(10) == 9
    assert bounds.negatives_for_supervision(10, 2) == pytest.approx(9 * math.exp(0.5))
    assert bounds.negatives_for_supervision(10, 2, temperature=0.5) == pytest.approx(9 * math.exp(2))


def test_integrating_lemma_b2_gives_twice_theorem_b1():
    """E Δ = ∫ P(Δ ≥ ε) dε: the paper's constant is half of what its own lemma yields."""
    epsilon = torch.linspace(0, 60, 60_001).tolist()
    tail = torch.tensor([deviation_tail(e, n=40, m=20, tau_plus=0.3) for e in epsilon], dtype=torch.float64)
    expected = 2 * debiasing_gap(n=40, m=20, tau_plus=0.3)
    assert torch.trapezoid(tail, dx=1e-3).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("tau_plus", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("m", [1, 7, 500])
@pytest.mark.parametrize("n", [1, 10, 1000])
def test_theorem_b1_is_implied_and_lemma_b2_too_except_for_equal_shares(n, m, tau_plus):
    setting = {"n": n, "m": m, "tau_plus": tau_plus}
    assert bounds.proved_debiasing_gap(**setting) < 0.57 * debiasing_gap(**setting)
    assert min(1 / n, tau_plus**2 / m) < 0.968 * max(1 / n, tau_plus**2 / m)
    for epsilon in (0.01, 0.1, 0.5, 1.0, 2.0):
        assert bounds.proved_deviation_tail(epsilon, **setting) <= deviation_tail(epsilon, **setting)


@pytest.mark.parametrize("ratio", [1.0, 0.999, 0.99, 0.98, 0.97, 0.968])
def test_lemma_b2_with_near_equal_shares_is_implied_above_1e_18(ratio):
    """For (τ⁺)²/m = ratio · 1/n, joint Hoeffding implies the stated bound wherever that exceeds 10⁻¹⁸."""
    setting = {"n": 100, "m": 25 / ratio, "tau_plus": 0.5}
    likely = [epsilon / 50 for epsilon in range(1, 500) if deviation_tail(epsilon / 50, **setting) > 1e-18]
    assert len(likely) > 400
    assert all(bounds.proved_deviation_tail(e, **setting) <= deviation_tail(e, **setting) for e in likely)
    if ratio == 1:  # further out it does not
        assert deviation_tail(9.0, **setting) < bounds.proved_deviation_tail(9.0, **setting) < 1e-17


def test_theorem_b4_by_hand():
    bound = generalisation_debiased(N=9, M=2, n=4, m=1, tau_plus=0.5, T=100, delta=0.1, rademacher=30.0)
    factor = math.sqrt(4 * 1.25 + 0.25 * 5) / 2
    assert bounds.complexity_factor(M=2, n=4, m=1, tau_plus=0.5) == pytest.approx(factor)
    confidence = math.log(9) * 2.5 * math.sqrt(math.log(10) / 100)
    parts = (bound.negatives, bound.positives, bound.complexity, bound.confidence)
    assert parts == pytest.approx((1.0, 1.0, factor * 0.3, confidence))
    assert bound.total == pytest.approx(sum(parts))
    # Theorem 3.1 is the one without debiasing.
    shared: dict[str, Any] = {"N": 64, "M": 4, "T": 1000, "delta": 0.05, "rademacher": 50.0}
    plain = bounds.generalisation_nca(**shared)
    debiased = generalisation_debiased(**shared, n=64, m=1, tau_plus=0.0)
    for name in ("negatives", "positives", "confidence"):
        assert getattr(plain, name) == pytest.approx(getattr(debiased, name))
    assert debiased.complexity == pytest.approx(plain.complexity * math.sqrt(1 + 1 / 64))


@pytest.mark.parametrize("M", [1, 4])
def test_the_jacobian_norm_of_the_proof_is_a_bound(M):
    n, m = 3, 2
    z = torch.nn.functional.normalize(torch.randn(1 + M + n + m, 4, dtype=torch.float64), dim=1)

    def ratios(z: torch.Tensor) -> torch.Tensor:
        kernel = (z[1:] @ z[0]).exp()
        return kernel[M:] / kernel[:M].sum()

    assert torch.autograd.functional.jacobian(ratios, z).norm().item() <= bounds.jacobian_norm(M=M, n=n, m=m)


@pytest.mark.parametrize(("tau_plus", "M"), [(0.0, 21), (0.01, 21), (0.1, 23), (0.5, 38)])
def test_the_proofs_loss_is_constant_for_many_positives(tau_plus, M):
    """ℓ in the proof of Theorem B.4 clamps the ratio at e⁻¹, but the loss clamps it at e⁻¹/Σh."""
    floor = math.exp(-1)
    h = (2 * torch.rand(2, 1000, 16, dtype=torch.float64) - 1).exp()
    h[0, 0], h[1, 0] = math.e, floor  # u on the anchor, v opposite: the largest possible G
    u, v = h.mean(2)
    ratio = (u - tau_plus * v) / (1 - tau_plus) / (M * floor)  # each positive opposite: the smallest Σh
    ell = torch.log1p(M * 10 * ratio.clamp(min=floor))
    assert torch.equal(ell, ell[:1].expand_as(ell))
    assert ratio[0] * M / (M - 1) > floor  # not so with one positive fewer
    assert torch.log1p(M * 10 * ratio.clamp(min=1 / M)).std() > 0.05  # rescaled


FINE: dict[str, Any] = {"N": 4, "M": 1, "T": 9, "delta": 0.1, "rademacher": 1}


test_bad_numbers_are_named = refused(
    lambda bound, settings: bound(**settings),
    (debiasing_gap, {"n": 4, "m": 1, "tau_plus": 1.0}, "tau_plus=1.0.*below 1"),
    (debiasing_gap, {"n": 0, "m": 1, "tau_plus": 0.1}, "n=0.*1 or more"),
    (bounds.proved_debiasing_gap, {"n": 4, "m": 1, "tau_plus": -0.1}, "tau_plus=-0.1"),
    (bounds.proved_debiasing_gap, {"n": 4, "m": 1, "tau_plus": 0.1, "temperature": 0}, "temperature=0"),
    (bounds.generalisation_nca, FINE | {"delta": 0.0}, "delta=0.0.*between 0 and 1"),
    (bounds.generalisation_nca, FINE | {"M": 0}, "M=0"),
    (bounds.generalisation_nca, FINE | {"rademacher": -1}, "rademacher=-1.*negative"),
    (generalisation_debiased, FINE | {"n": 4, "m": 1, "tau_plus": 1.5}, "tau_plus=1.5.*below 1"),
    (uniform_deviation, {"rademacher": math.nan, "largest": 1, "T": 9, "delta": 0.1}, "rademacher=nan"),
    (uniform_deviation, {"rademacher": 1, "largest": -2, "T": 9, "delta": 0.1}, "largest=-2"),
    (deviation_tail, {"epsilon": -0.1, "n": 4, "m": 1, "tau_plus": 0.1}, "epsilon=-0.1.*negative"),
    (bounds.proved_deviation_tail, {"epsilon": -2, "n": 4, "m": 1, "tau_plus": 0.1}, "epsilon=-2.*negative"),
    (bounds.negatives_for_supervision, {"classes": 1}, "classes=1.*2 or more"),
)
