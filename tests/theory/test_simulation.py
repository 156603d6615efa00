"""The known mixture: Lemma B.3 on its exact losses, and the bounds on draws from it."""

import math
from itertools import product

import pytest
import torch

from intnacl.theory import bounds, simulation
from intnacl.theory.simulation import Mixture, Setting, complexity, deviations, random_mixture, unbiased_loss
from intnacl.theory.sweep import exclusive_or, two_classes
from mistakes import refused

SETTINGS = product((2, 3, 5), (1, 3), (0.3, 1.0, 3.0), (0, 1))
RANDOM = [random_mixture(K, P, 4, spread, seed=seed) for K, P, spread, seed in SETTINGS]
MIXTURE = random_mixture(4, 8, 6, 1.0, seed=0)
# A class at each end of a line: kernels take their extreme values, and E h⁻ = e⁻¹, which is the hardest case.
EXTREME = Mixture(features=torch.tensor([[[1.0]], [[-1.0]]]))


def test_second_half_of_lemma_b3_for_one_positive():
    """The first half is checked as well: the best classifier beats the class means."""
    for mixture in RANDOM:
        K, mean = mixture.classes, simulation.mean_classifier_loss(mixture)
        assert simulation.supervised_loss(mixture) <= mean + 1e-7
        losses = [unbiased_loss(mixture, N) for N in (K - 1, K, 4 * K)]
        assert mean <= losses[0] + 1e-12
        assert losses == sorted(losses), "N = K − 1 gives the smallest loss"
    collapsed = random_mixture(5, 1, 4, 0.0, seed=0)  # one point per class: at N = K − 1 nearly L_Sup^μ
    assert unbiased_loss(collapsed, 3) < simulation.mean_classifier_loss(collapsed)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("M", [1, 2, 6])
def test_second_half_of_lemma_b3_for_any_m_with_more_negatives(M, temperature):
    for mixture in (exclusive_or(), two_classes(), *RANDOM):
        mixture = Mixture(features=mixture.features, temperature=temperature)
        N = bounds.negatives_for_supervision(mixture.classes, M, temperature)
        assert simulation.mean_classifier_loss(mixture) <= unbiased_loss(mixture, N, M) + 1e-12
        assert simulation.mean_classifier_loss(mixture) <= unbiased_loss(mixture, M * N, M, "N") + 1e-12


def test_more_positives_never_raise_the_loss():
    """For many positives, the loss tends to that of the mean kernel."""
    mixtures = (random_mixture(3, 4, 4, 1.0, seed=0), two_classes(), exclusive_or())
    for mixture, denominator in product(mixtures, ("N", "MN")):
        losses = [unbiased_loss(mixture, 5, M, denominator) for M in range(1, 7)]
        assert losses == sorted(losses, reverse=True)
    mixture = random_mixture(3, 2, 4, 0.5, seed=0)
    limit = torch.log1p(5 * mixture.negative_X / mixture.own_XP.mean(1)).mean().item()
    gaps = [unbiased_loss(mixture, 5, M) - limit for M in (1, 10, 100)]
    assert gaps[0] > 5 * gaps[1] > 25 * gaps[2] > 0


@pytest.mark.parametrize("M", [1, 2, 3])
def test_enumeration_equals_loops(M):
    mixture = random_mixture(3, 2, 4, 1.0, seed=1)
    for factor, denominator in ((M * 7, "MN"), (7, "N")):
        losses = []
        for k, p in product(range(3), range(2)):
            row = mixture.kernel_XKP[2 * k + p]
            negative = sum(float(row[c].mean()) for c in range(3) if c != k) / 2
            for chosen in product(range(2), repeat=M):
                own = sum(float(row[k, j]) for j in chosen)
                losses.append(-math.log(own / (own + factor * negative)))
        expected = sum(losses) / len(losses)
        assert unbiased_loss(mixture, 7, M, denominator) == pytest.approx(expected, rel=1e-12)


def test_the_proved_bound_is_within_a_factor_of_three_of_the_worst_case(monkeypatch):
    """The deviation also falls like 1/√n."""
    spread = [deviations(MIXTURE, Setting(n=n, m=n), 4000).abs().mean().item() for n in (16, 256)]
    assert spread[0] / spread[1] == pytest.approx(4, rel=0.15)
    delta = deviations(EXTREME, Setting(N=10_000, M=1, n=1000, m=10**4), 2000).abs().mean().item()
    assert delta < bounds.proved_debiasing_gap(n=1000, m=10**4, tau_plus=0.5) < 3 * delta
    monkeypatch.setattr(simulation, "CHUNK", 100)
    assert len(deviations(MIXTURE, Setting(n=30), 25)) == 25, "chunks add up"


def test_the_plain_mean_keeps_its_bias():
    """g0 draws from p, not from p_x⁻: no n removes the difference, which τ⁺ = 0 in the bound leaves out."""
    plain = [deviations(MIXTURE, Setting(n=n, estimator="g0"), 2000).mean().item() for n in (64, 4096)]
    assert plain[1] == pytest.approx(plain[0], rel=0.2)
    assert plain[1] > bounds.proved_debiasing_gap(n=4096, m=10**9, tau_plus=0.0)


def test_draws_agree_with_the_exact_loss():
    """The loss with the true E h⁻, averaged over x and x⁺, is the enumerated one; with g1 it tends to it."""
    assert deviations(MIXTURE, Setting(N=16, M=2, n=4096, m=4096), 1000).abs().max() < 0.2
    x = torch.randint(32, (20_000,))
    own = MIXTURE.own_XP[x[:, None], torch.randint(8, (20_000, 2))].sum(1)
    sampled = simulation.log_ratio(own, MIXTURE.negative_X[x], 32)
    error = sampled.std().item() / math.sqrt(20_000)
    assert sampled.mean().item() == pytest.approx(unbiased_loss(MIXTURE, 16, 2), abs=4 * error)


def test_estimate_by_hand():
    u, v = torch.tensor([[1.0, 2.0], [0.4, 0.4]]).double(), torch.tensor([[1.0], [2.0]]).double()
    assert simulation.estimate(u, v, "g0", 0.5, 1.0).tolist() == pytest.approx([1.5, 0.4])
    assert simulation.estimate(u, v, "g1", 0.5, 1.0).tolist() == pytest.approx([2.0, math.exp(-1)], rel=1e-15)


def test_complexity_of_known_classes():
    """One function has complexity 0; the pair ±1 has E|Σσ|, 1 for T = 2; all sign patterns have T."""
    assert complexity(torch.randn(1, 50)) == pytest.approx((0, 0), abs=1e-5)
    measured, error = complexity(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]), draws=4000)
    assert measured == pytest.approx(1.0, abs=4 * error)
    assert 0 < error < 0.03
    patterns = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 6)
    assert complexity(patterns)[0] == pytest.approx(6.0)
    values, shift = torch.randn(5, 30, dtype=torch.float64), 100 * torch.randn(30, dtype=torch.float64)
    assert complexity(values + shift)[0] == pytest.approx(complexity(values)[0]), "a common shift counts"


def test_features_are_less_complex_than_all_signs_and_losses_do_not_fall_like_one_over_m():
    features = simulation.feature_class(encoders=16, T=64)
    norms = features.reshape(16, 64, 4).norm(dim=2)
    torch.testing.assert_close(norms, torch.ones_like(norms))
    assert 0 < complexity(features)[0] < features.abs().sum(1).max().item()
    one, sixteen, most = (
        simulation.loss_class(Setting(N=32, M=M, n=32, m=4), encoders=32, T=128)
        for M in (1, 16, simulation.MOST_POSITIVES)
    )
    assert 1 / 16 < 0.4 < complexity(sixteen)[0] / complexity(one)[0] < 0.9
    assert most.isfinite().all()


def test_symmetrisation_bounds_the_worst_encoder():
    """E sup_f (E g − mean g) ≤ 2R/T, and the bound for one sample adds its confidence term."""
    setting, T = Setting(N=8, M=2, n=8, m=2), 64
    expected = simulation.loss_class(setting, encoders=16, T=20_000, seed=99).mean(1)
    samples = [simulation.loss_class(setting, encoders=16, T=T, seed=seed) for seed in range(20)]
    worst = torch.tensor([(expected - losses.mean(1)).max().item() for losses in samples])
    rademacher = torch.tensor([complexity(losses, 200)[0] for losses in samples]).mean().item()
    assert 0 < worst.mean().item() < 2 * rademacher / T
    largest = bounds.largest_loss(N=8, tau_plus=0.25)
    assert max(losses.max().item() for losses in samples) < largest
    assert worst.max() < bounds.uniform_deviation(rademacher=rademacher, largest=largest, T=T, delta=0.1)


test_bad_settings_are_named = refused(
    lambda make, settings: make(**settings),
    (Mixture, {"features": torch.ones(1, 3, 2)}, r"\(1, 3, 2\).*classes ≥ 2"),
    (Mixture, {"features": torch.full((2, 3, 2), torch.nan)}, "not finite"),
    (Mixture, {"features": torch.ones(2, 3, 2), "temperature": 0.0}, "temperature=0.0"),
    (unbiased_loss, {"mixture": EXTREME, "N": -1}, "N=-1"),
    (unbiased_loss, {"mixture": EXTREME, "N": 1, "M": 0}, "M=0"),
    (unbiased_loss, {"mixture": EXTREME, "N": 1, "denominator": "NM"}, "denominator='NM'.*MN"),
    (Setting, {"M": 0}, "M=0"),
    (Setting, {"estimator": "g2"}, "'g2'.*g0, g1"),
    (complexity, {"values_FT": torch.zeros(3)}, r"\(3,\)"),
    # Otherwise, fewer positives would be summed than the factor counts.
    (simulation.loss_class, {"setting": Setting(M=65), "encoders": 2, "T": 4}, "M=65: .* at most 64"),
)
